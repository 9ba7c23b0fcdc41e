//! The launcher's part in handshakes: it has the key, its programs do not.
//!
//! The key file is looked at for each handshake, so a key that was exchanged meanwhile is used by a
//! program that runs.

use crate::failure::Failure;
use crate::key_file::Current;
use muninn_net::{KeyHolder, Lock};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Ready to answer, if there is a key. Its socket's file goes with it.
#[derive(Debug)]
pub struct Holder {
    holder: Option<KeyHolder>,
    path: PathBuf,
}

impl Holder {
    /// Opens the doors, and notes in the job's configuration where they are.
    pub fn open(job: &mut muninn_job::Config) -> Result<Holder, Failure> {
        if job.lock == Lock::Open {
            return Ok(Holder {
                holder: None,
                path: PathBuf::new(),
            });
        }
        let directory = muninn_job::own_directory().map_err(Failure::failed)?;
        let path = directory.join(format!(
            "{}{}-{:016x}.key",
            muninn_job::PREFIX,
            std::process::id(),
            muninn_sys::rand::u64()
        ));
        let holder = KeyHolder::new(&job.holder(), Some(&path))?;
        // Programs may become other users. Who is answered is not for the file's mode to say.
        let mode = PermissionsExt::from_mode(0o666);
        if std::fs::set_permissions(&path, mode).is_ok() {
            job.holder_path.clone_from(&path);
        }
        Ok(Holder {
            holder: Some(holder),
            path,
        })
    }

    /// Answers from now on, in a thread of its own.
    pub fn serve(&self, mut key: Current) {
        if let Some(holder) = self.holder.clone() {
            std::thread::spawn(move || holder.serve(move || key.key().clone()));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if self.holder.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
