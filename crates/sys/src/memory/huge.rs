//! Which huge pages this machine offers: a reserved pool, and transparent ones for shared memory.
//!
//! Read once at start to choose how the pool of a memory server is made, and by `doctor` to say
//! what is missing. Known limit: free pages of the pool can be taken by others a moment later, so
//! creating the file may still fail.

use muninn_types::Bytes;

use crate::proc::{ProcSource, read_number, read_text};

/// The pool of reserved huge pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugetlbPool {
    pub page: Bytes,
    pub total: u64,
    pub free: u64,
}

/// When shared memory gets transparent huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmemThp {
    Always,
    WithinSize,
    /// Only where asked for by [`super::HugeAdvice::Wanted`].
    Advise,
    #[default]
    Never,
}

/// What the machine offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    pub hugetlb_2m: HugetlbPool,
    pub shmem: ShmemThp,
    /// Transparent huge pages for private memory are not switched off.
    pub anonymous: bool,
}

impl HugePages {
    /// Anything that cannot be read counts as absent.
    pub fn probe(source: &impl ProcSource) -> HugePages {
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let number = |name: &str| read_number(source, &format!("{pool}/{name}")).unwrap_or(0);
        let choice = |name: &str| {
            read_text(
                source,
                &format!("/sys/kernel/mm/transparent_hugepage/{name}"),
            )
            .ok()
            .and_then(|text| Some(chosen(&text)?.to_string()))
        };
        HugePages {
            hugetlb_2m: HugetlbPool {
                page: Bytes::mib(2),
                total: number("nr_hugepages"),
                free: number("free_hugepages").saturating_sub(number("resv_hugepages")),
            },
            shmem: match choice("shmem_enabled").as_deref() {
                Some("always" | "force") => ShmemThp::Always,
                Some("within_size") => ShmemThp::WithinSize,
                Some("advise") => ShmemThp::Advise,
                _ => ShmemThp::Never,
            },
            anonymous: matches!(choice("enabled").as_deref(), Some("always" | "madvise")),
        }
    }

    /// Whether a memory file of this size can come from the reserved pool.
    pub fn hugetlb_fits(&self, size: Bytes) -> bool {
        size.0.div_ceil(self.hugetlb_2m.page.0.max(1)) <= self.hugetlb_2m.free
    }
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{FakeProc, RealProc};

    #[test]
    fn the_chosen_word_decides() {
        let fake = FakeProc::new()
            .with(
                "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "64\n",
            )
            .with(
                "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "10\n",
            )
            .with(
                "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
                "2\n",
            )
            .with(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n",
            )
            .with(
                "/sys/kernel/mm/transparent_hugepage/enabled",
                "always madvise [never]\n",
            );
        let huge = HugePages::probe(&fake);
        assert_eq!(huge.shmem, ShmemThp::Advise);
        assert!(!huge.anonymous);
        assert!(huge.hugetlb_fits(Bytes::mib(16)));
        assert!(!huge.hugetlb_fits(Bytes::mib(17)));
        assert_eq!(HugePages::probe(&FakeProc::new()).hugetlb_2m.free, 0);
        println!("this machine: {:?}", HugePages::probe(&RealProc));
    }
}
