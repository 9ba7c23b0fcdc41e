//! `doctor --cluster`: whether this machine can be a node of a cluster.

use super::checks::Check;
use crate::cmd::agent;
use crate::pool_list::AGENT_SOCKET;
use std::path::Path;
use std::process::{Command, Stdio};

/// Lines of Slurm's configuration that matter.
const WANTED: [(&str, &str, &str); 3] = [
    (
        "JobSubmitPlugins",
        "lua",
        "--far-memory has no effect: set JobSubmitPlugins=lua and put job_submit.lua of 'muninn cluster \
         setup' beside slurm.conf",
    ),
    (
        "SelectTypeParameters",
        "memory",
        "Slurm does not count memory, so nothing waits for it: use SelectType=select/cons_tres with \
         SelectTypeParameters=CR_Core_Memory",
    ),
    (
        "PlugStackConfig",
        "",
        "jobs are not put under Muninn: add the line of 'muninn cluster setup' to plugstack.conf",
    ),
];

pub(super) fn all() -> Vec<Check> {
    let mut checks = vec![agent_runs()];
    let config = slurm();
    let Ok(config) = config else {
        let why = config.err().unwrap_or_default();
        let advice = "only needed for 'sbatch --far-memory': on Debian 'apt-get install slurm-client \
                      slurmd munge' (nodes) and 'slurmctld' (one of them); 'muninn run --pool agent' \
                      works without";
        checks.push(Check::new("slurm", false, why, advice));
        return checks;
    };
    checks.push(Check::new("slurm", true, "answers", ""));
    for (name, wanted, advice) in WANTED {
        let value = value(&config, name).unwrap_or_default();
        let mut ok = value.to_lowercase().contains(wanted) && value != "(null)";
        if name == "PlugStackConfig" {
            let text = std::fs::read_to_string(&value).unwrap_or_default();
            ok = text.lines().any(|line| {
                !line.trim_start().starts_with('#') && line.contains("libmuninn_spank")
            });
        }
        checks.push(Check::new(name, ok, value, advice));
    }
    checks
}

fn agent_runs() -> Check {
    let advice = "'muninn run --pool agent' has nobody to ask: start 'muninn agent' on this node";
    match agent::ask(Path::new(AGENT_SOCKET)) {
        Ok(state) => {
            let text = format!("node '{}', {} jobs", state.name, state.jobs.len());
            Check::new("agent", true, text, "")
        }
        Err(why) => Check::new("agent", false, why.to_string(), advice),
    }
}

/// What `scontrol show config` says, or why it does not.
fn slurm() -> Result<String, String> {
    let mut command = Command::new("scontrol");
    command.args(["show", "config"]).stdin(Stdio::null());
    let output = command.output();
    let output = output.map_err(|error| format!("scontrol cannot be run: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err("slurmctld does not answer".to_string()),
    }
}

fn value(config: &str, name: &str) -> Option<String> {
    let pairs = config.lines().filter_map(|line| line.split_once('='));
    let mut found = pairs.filter(|(known, _)| known.trim() == name);
    found.next().map(|(_, value)| value.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_what_scontrol_says() {
        let config = "Configuration data\nJobSubmitPlugins        = lua\nX = a=b\n";
        assert_eq!(value(config, "JobSubmitPlugins").as_deref(), Some("lua"));
        assert_eq!(value(config, "X").as_deref(), Some("a=b"));
        assert_eq!(value(config, "Y"), None);
    }
}
