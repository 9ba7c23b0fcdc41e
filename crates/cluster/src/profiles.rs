//! What was learned of jobs: how much longer they run with less of their memory near.
//!
//! While a job runs its share changes, and the runtime counts the time in which its threads waited for
//! pages. So each stretch says: at this ratio, so much of the time was waiting. Times are added up by
//! ratio, in sixteenths; what comes of it is levelled and goes straight from point to point
//! ([`Profile::from_points`]). Kept by user and name: nobody can spoil what others' jobs are planned with,
//! and whoever lies about his own job pays with its share.
//!
//! Known limit: waiting that several threads share is counted for each; the curve is then too steep,
//! which costs the others some memory and is right in order.

use crate::state_file::{Found, StateFile};
use muninn_policy::profile::catalogue::{
    self, CatalogueError, JobKind, LOWEST_RATIO, SLOWDOWN_ADMITTED, Size,
};
use muninn_policy::profile::{Profile, level};
use muninn_types::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Ratios are told apart by sixteenths.
const STEPS: usize = 16;
/// Less time than this at a ratio says nothing.
const SECONDS_MIN: f64 = 1.0;
/// Weight of what was learned before, when a run ends: old runs fade.
const FADES: f64 = 0.7;
/// Names that are kept; the one that was used least lately goes.
pub const KEPT_MAX: usize = 4096;
/// Nobody waits for pages all of the time.
const WAITED_MAX: f64 = 0.98;
/// A job of which nothing is known is taken to run so much longer with the lowest ratio.
const SLOWDOWN_UNKNOWN: f64 = 1.5;
/// Run time of a job of which nothing is known.
const SECONDS_UNKNOWN: f64 = 60.0;

/// One name of one user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// The most memory that was seen.
    pub memory: Bytes,
    /// Run time had all memory been near.
    pub full_s: f64,
    pub runs: u32,
    /// For each sixteenth: all time, and the part of it that was waiting.
    pub spent_s: [f64; STEPS],
    pub waited_s: [f64; STEPS],
    /// When it was used last, counted in uses.
    pub used: u64,
}

impl Learned {
    /// Adds a stretch of time with a share of the memory near.
    pub fn add(&mut self, ratio: f64, spent_s: f64, waited_s: f64) {
        if !(spent_s > 0.0 && spent_s.is_finite() && waited_s >= 0.0) {
            return;
        }
        let step = ((ratio * STEPS as f64).ceil().max(1.0) as usize).min(STEPS) - 1;
        self.spent_s[step] += spent_s;
        self.waited_s[step] += waited_s.min(WAITED_MAX * spent_s);
    }

    /// The profile, and whether it rests on more than a guess.
    pub fn profile(&self) -> (Profile, bool) {
        let (mut ratios, mut slower) = (vec![1.0], vec![1.0]);
        for step in (0..STEPS - 1).rev() {
            if self.spent_s[step] >= SECONDS_MIN {
                ratios.push((step + 1) as f64 / STEPS as f64);
                let working = self.spent_s[step] - self.waited_s[step];
                slower.push(self.spent_s[step] / working);
            }
        }
        let known = ratios.len() > 1;
        // What nobody tried is taken to get worse as fast as jobs do of which nothing is known.
        let (&last, &worst) = (ratios.last().unwrap(), slower.last().unwrap());
        if last > LOWEST_RATIO {
            let steep = (SLOWDOWN_UNKNOWN - 1.0) / (1.0 - LOWEST_RATIO);
            ratios.push(LOWEST_RATIO);
            slower.push(worst + steep * (last - LOWEST_RATIO));
        }
        let full_s = if self.full_s > 0.0 {
            self.full_s
        } else {
            SECONDS_UNKNOWN
        };
        let runtime_s: Vec<f64> = level(&slower).iter().map(|slow| slow * full_s).collect();
        let profile = Profile::from_points(&ratios, &runtime_s);
        (profile.expect("ratios fall and times rise"), known)
    }

    /// A run is over: what it showed, with what was known.
    fn merge(&mut self, run: &Learned) {
        for step in 0..STEPS {
            self.spent_s[step] = self.spent_s[step] * FADES + run.spent_s[step];
            self.waited_s[step] = self.waited_s[step] * FADES + run.waited_s[step];
        }
        let spent: f64 = run.spent_s.iter().sum();
        let waited: f64 = run.waited_s.iter().sum();
        let full_s = spent - waited;
        self.full_s = match self.runs {
            0 => full_s,
            _ => self.full_s * FADES + full_s * (1.0 - FADES),
        };
        self.memory = run.memory.max(Bytes((self.memory.0 as f64 * FADES) as u64));
        self.runs = self.runs.saturating_add(1);
    }
}

/// The share below which admission does not plan a job with this profile.
pub fn min_ratio(profile: &Profile) -> f64 {
    profile
        .ratio_at_slowdown(SLOWDOWN_ADMITTED)
        .max(LOWEST_RATIO.min(1.0))
        .max(profile.lowest())
}

/// Profiles that `muninn profile` measured, by name, for jobs of all users. They go before what was learned.
#[derive(Clone, Debug, Default)]
pub struct Measured(BTreeMap<String, JobKind>);

impl Measured {
    /// Of a file as `muninn profile` writes it, or several of them in one.
    pub fn parse(text: &str) -> Result<Measured, CatalogueError> {
        let kinds = catalogue::parse(text, Size::Rack)?.into_iter();
        Ok(Measured(
            kinds.map(|kind| (kind.name.clone(), kind)).collect(),
        ))
    }

    pub fn get(&self, name: &str) -> Option<&JobKind> {
        self.0.get(name)
    }
}

/// What admission has to know of a job beside what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// It is not planned with a smaller share.
    pub min_ratio: f64,
    pub full_s: f64,
}

impl Known {
    /// Whoever says so may be wrong; nothing is to come of it that makes no sense.
    pub fn is_sane(&self) -> bool {
        (0.05..=1.0).contains(&self.min_ratio) && self.full_s.is_finite() && self.full_s > 0.0
    }
}

impl From<&JobKind> for Known {
    fn from(kind: &JobKind) -> Known {
        Known {
            min_ratio: kind.min_ratio,
            full_s: kind.profile.full_s(),
        }
    }
}

/// All that was learned on a node.
#[derive(Debug)]
pub struct Profiles {
    file: Option<StateFile>,
    known: BTreeMap<String, Learned>,
    uses: u64,
    changed: bool,
}

fn key(uid: u32, name: &str) -> String {
    format!("{uid}:{name}")
}

impl Profiles {
    /// With what is in the file, if it can be had.
    pub fn load(file: Option<StateFile>) -> Profiles {
        let known: BTreeMap<String, Learned> = match file.as_ref().map(StateFile::load) {
            Some(Found::Whole(known) | Found::Older(known)) => known,
            _ => BTreeMap::new(),
        };
        let uses = known.values().map(|one| one.used).max().unwrap_or(0);
        Profiles {
            file,
            known,
            uses,
            changed: false,
        }
    }

    pub fn get(&mut self, uid: u32, name: &str) -> Option<&Learned> {
        self.uses += 1;
        let learned = self.known.get_mut(&key(uid, name))?;
        learned.used = self.uses;
        Some(learned)
    }

    /// A run is over.
    pub fn learn(&mut self, uid: u32, name: &str, run: &Learned) {
        if run.spent_s.iter().sum::<f64>() < SECONDS_MIN {
            return;
        }
        self.uses += 1;
        let learned = self.known.entry(key(uid, name)).or_default();
        learned.merge(run);
        learned.used = self.uses;
        self.changed = true;
        if self.known.len() > KEPT_MAX {
            let oldest = self.known.iter().min_by_key(|(_, one)| one.used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| self.known.remove(&key));
        }
    }

    /// Writes what has changed; what could not be written is tried again the next time.
    pub fn save(&mut self) -> std::io::Result<()> {
        if let Some(file) = &self.file
            && self.changed
        {
            file.save(&self.known)?;
            self.changed = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_job_shows_becomes_its_profile() {
        let mut run = Learned::default();
        assert!(!run.profile().1);
        run.add(1.0, 10.0, 0.0);
        run.add(0.75, 10.0, 0.0);
        run.add(0.5, 10.0, 5.0);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles");
        let mut profiles = Profiles::load(Some(StateFile::durable(&path)));
        profiles.learn(7, "sort", &run);
        profiles.save().unwrap();
        let mut profiles = Profiles::load(Some(StateFile::durable(&path)));
        assert!(profiles.get(8, "sort").is_none(), "that of another user");
        let (profile, known) = profiles.get(7, "sort").unwrap().profile();
        assert!(known);
        assert_eq!(profile.full_s(), 25.0);
        assert_eq!(profile.slowdown(0.75), 1.0);
        assert_eq!(profile.slowdown(0.5), 2.0);
        assert_eq!(min_ratio(&profile), profile.ratio_at_slowdown(1.2));
    }

    #[test]
    fn names_that_nobody_uses_are_forgotten() {
        let mut run = Learned::default();
        run.add(1.0, 10.0, 0.0);
        let mut profiles = Profiles::load(None);
        for n in 0..KEPT_MAX + 10 {
            profiles.learn(1, &n.to_string(), &run);
            assert!(profiles.get(1, "0").is_some());
        }
        assert_eq!(profiles.known.len(), KEPT_MAX);
        assert!(profiles.get(1, "1").is_none());
    }

    #[test]
    fn what_was_measured_is_read() {
        let text = "[[job]]\nname = \"sort\"\nmemory = \"1GiB\"\ncores = 1\nratio = [1.0, 0.5]\n\
                    runtime_s = [10.0, 11.0]\n";
        let measured = Measured::parse(text).unwrap();
        let known = Known::from(measured.get("sort").unwrap());
        assert_eq!((known.min_ratio, known.full_s), (0.5, 10.0));
        assert!(known.is_sane() && measured.get("other").is_none());
        assert!(Measured::parse("nonsense").is_err());
        let wrong = Known {
            min_ratio: f64::NAN,
            ..known
        };
        assert!(!wrong.is_sane());
    }

    proptest! {
        #[test]
        fn whatever_a_job_says_there_is_a_profile(
            said in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..30),
            sane in prop::collection::vec((0.0..1.5f64, 0.0..100.0f64, 0.0..200.0f64), 0..30),
        ) {
            let mut run = Learned::default();
            for (ratio, spent, waited) in said.into_iter().filter(|s| s.1 < 1e12).chain(sane) {
                run.add(ratio, spent, waited);
            }
            let (profile, _) = run.profile();
            prop_assert!(profile.full_s() > 0.0 && profile.lowest() <= LOWEST_RATIO);
            let ratio = min_ratio(&profile);
            prop_assert!((profile.lowest()..=1.0).contains(&ratio));
        }
    }
}
