//! k-means of scikit-learn over a numpy array: whole passes over large arrays.

use super::program::{Measured, Program, by_output, quoted, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::Bytes;
use std::time::Duration;

/// The array and scikit-learn's copy of it are most of the memory.
const SCRIPT: &str = r#"
import sys, hashlib
import numpy as np
from sklearn.cluster import KMeans
rows = int(sys.argv[1])
rng = np.random.default_rng(1)
data = rng.standard_normal((rows, 16))
data += np.repeat(np.arange(8), rows // 8 + 1)[:rows, None]
model = KMeans(n_clusters=8, n_init=1, max_iter=8, tol=0, random_state=1, algorithm="lloyd")
labels = model.fit_predict(data)
print(hashlib.sha256(labels.tobytes()).hexdigest()[:16], "%.6e" % model.inertia_)
"#;

#[derive(Debug, Default)]
pub struct KMeans {
    words: Vec<String>,
}

impl Program for KMeans {
    fn name(&self) -> &'static str {
        "kmeans"
    }

    fn prepare(&mut self, _: &Arena, size: Bytes) -> Result<(), String> {
        // The system's own, before one that was installed beside it without these libraries.
        let candidates = ["/usr/bin/python3", "python3"];
        let has = |python: &&&str| works(python, &["-c", "import numpy, sklearn"]).is_ok();
        let Some(python) = candidates.iter().find(has) else {
            return Err("no python3 with numpy and sklearn (Debian: python3-sklearn)".to_string());
        };
        let rows = size.0 / 2 / (16 * 8);
        self.words = [python, "-c", SCRIPT, &rows.to_string()]
            .map(str::to_string)
            .to_vec();
        Ok(())
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        // One thread: sums in another order would be other sums.
        let one = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
        let job = Job {
            env: one.map(|name| (name.to_string(), "1".to_string())).to_vec(),
            patience,
            ..Job::new(self.words.clone())
        };
        by_output("kmeans", arena, backend, limit, &job)
    }

    fn script(&self) -> Option<String> {
        let words = quoted(&self.words);
        Some(format!("OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 {words}"))
    }
}
