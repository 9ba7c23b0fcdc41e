//! How a server or a nic runs functions: flags, and what they mean.

use crate::config::WicTable;
use crate::failure::Failure;
use muninn_wic::local::{Limits, LocalHosts, Style};
use muninn_wic::{Push, Upstream};
use serde::Deserialize;
use std::sync::Arc;

/// Calls that run at once unless told otherwise: what WICKit found best.
const WINDOW: usize = 8;
const WINDOW_MAX: usize = 256;

/// `--wic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum WicChoice {
    /// Whichever of the next two turns out faster, found out by trying
    #[default]
    Auto,
    /// Each call to its end, with plain loads and stores
    Sync,
    /// A window of calls at once, with prefetched accesses: for data far larger than the cache
    Async,
    /// No functions
    Off,
}

/// `--wic-push`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PushChoice {
    /// Nobody
    Off,
    /// Operators, who has the shared key, and at the Unix socket root and the server's own user
    #[default]
    Operators,
    /// Clients too, for themselves
    Clients,
}

impl From<PushChoice> for Push {
    fn from(choice: PushChoice) -> Push {
        match choice {
            PushChoice::Off => Push::Off,
            PushChoice::Operators => Push::Operators,
            PushChoice::Clients => Push::Clients,
        }
    }
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct HostArgs {
    /// How to run functions that clients call [default: auto]
    #[arg(long, env = "MUNINN_WIC", value_name = "HOW")]
    pub wic: Option<WicChoice>,

    /// Calls that run at once with --wic async and auto [default: 8]
    #[arg(long, env = "MUNINN_WIC_WINDOW", value_name = "N")]
    pub wic_window: Option<usize>,

    /// Accesses and turns of loops after which a call is ended [default: 1048576]
    #[arg(long, env = "MUNINN_WIC_STEPS", value_name = "N")]
    pub wic_steps: Option<u32>,
}

impl HostArgs {
    /// None: no functions are run.
    pub fn resolve(
        &self,
        file: &WicTable,
        upstream: Option<Arc<Upstream>>,
    ) -> Result<Option<LocalHosts>, Failure> {
        let window = self.wic_window.or(file.wic_window).unwrap_or(WINDOW);
        if !(1..=WINDOW_MAX).contains(&window) {
            return Err(Failure::usage(format!(
                "a window of {window} calls cannot be: use 1 to {WINDOW_MAX}"
            )));
        }
        let (style, window) = match self.wic.or(file.wic).unwrap_or_default() {
            WicChoice::Off => return Ok(None),
            WicChoice::Auto => (None, window),
            WicChoice::Sync => (Some(Style::Sync), 1),
            WicChoice::Async => (Some(Style::Prefetch), window),
        };
        let mut limits = Limits::default();
        if let Some(steps) = self.wic_steps.or(file.wic_steps) {
            limits.steps = steps;
        }
        Ok(Some(LocalHosts {
            style,
            window,
            limits,
            upstream,
            ..LocalHosts::sync()
        }))
    }
}
