//! What a task becomes. Without unsafe code, and without Slurm.

use std::ffi::CString;

/// Where the command line is, and the agent, if plugstack.conf does not say.
const MUNINN: &str = "/usr/bin/muninn";
const AGENT: &str = "/run/muninn/agent.sock";
/// What belongs to the launcher of another step and must not reach this one's.
const NOT_INHERITED: [&[u8]; 3] = [b"MUNINN_JOB=", b"MUNINN_DOOR=", b"MUNINN_PROFILE="];

pub(crate) struct Plan {
    pub(crate) program: CString,
    pub(crate) command: Vec<CString>,
    pub(crate) environment: Vec<CString>,
}

/// The version of Slurm that this library is for, as Slurm writes it: `MUNINN_SLURM_VERSION` when it was
/// built, else that of Debian 12.
pub(crate) const fn slurm_version() -> u32 {
    match option_env!("MUNINN_SLURM_VERSION") {
        Some(text) => parse_version(text.as_bytes()),
        None => parse_version(b"22.05.8"),
    }
}

const fn parse_version(text: &[u8]) -> u32 {
    let (mut version, mut part, mut parts, mut index) = (0u32, 0u32, 0, 0);
    while index <= text.len() {
        if index == text.len() || text[index] == b'.' {
            version = (version << 8) | part;
            part = 0;
            parts += 1;
        } else {
            assert!(
                text[index].is_ascii_digit(),
                "MUNINN_SLURM_VERSION is like 22.05.8"
            );
            part = part * 10 + (text[index] - b'0') as u32;
        }
        index += 1;
    }
    assert!(parts == 3, "MUNINN_SLURM_VERSION is like 22.05.8");
    version
}

/// `auto`, `none`, or a size: digits, perhaps with a point, and a unit.
pub(crate) fn check_far(text: &str) -> Result<(), String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let digits = text[..text.len() - unit.len()].parse::<f64>().is_ok();
    let units = ["KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB", "B", ""];
    match text {
        "auto" | "none" => Ok(()),
        _ if digits && units.contains(&unit) => Ok(()),
        _ => Err(format!(
            "--far-memory={text} is neither auto nor none nor a size such as 2GiB"
        )),
    }
}

/// A name that means nothing to anybody on its way.
pub(crate) fn check_profile(text: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=64).contains(&text.len()) && text.chars().all(fine) {
        true => Ok(()),
        false => Err(format!(
            "--far-profile={text}: use 1 to 64 letters, digits, points, - and _"
        )),
    }
}

/// `None`: the task is left alone.
pub(crate) fn plan(
    far: &str,
    profile: Option<&str>,
    settings: &[CString],
    command: Vec<CString>,
    environment: Vec<CString>,
) -> Result<Option<Plan>, String> {
    if far == "none" {
        return Ok(None);
    }
    let setting = |name: &str| {
        let words = settings.iter().filter_map(|word| word.to_str().ok());
        words
            .filter_map(|word| word.split_once('='))
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    };
    let variable = |name: &str| {
        let of = |entry: &CString| {
            let (known, value) = entry.to_str().ok()?.split_once('=')?;
            (known == name).then(|| value.to_string())
        };
        environment.iter().find_map(of)
    };
    let node = variable("SLURMD_NODENAME").unwrap_or_default();
    if node.contains('/') {
        return Err(format!("a node is not called '{node}'"));
    }
    let agent = setting("agent").unwrap_or(AGENT).replace("%n", &node);
    let program = setting("muninn").unwrap_or(MUNINN);
    let text = |text: &str| CString::new(text).map_err(|_| format!("'{text}' holds a zero"));
    let mut words = vec![
        text("muninn")?,
        text("run")?,
        text("--pool")?,
        text(&format!("agent:{agent}"))?,
    ];
    if let Some(profile) = profile {
        check_profile(profile)?;
        words.extend([text("--profile")?, text(profile)?]);
    }
    words.push(text("--")?);
    words.extend(command);
    let foreign = |entry: &CString| {
        let entry = entry.as_bytes();
        NOT_INHERITED.iter().any(|name| entry.starts_with(name))
    };
    let environment = environment.into_iter().filter(|entry| !foreign(entry));
    Ok(Some(Plan {
        program: text(program)?,
        command: words,
        environment: environment.collect(),
    }))
}
