//! What the command line says. Plain by intent: the checker should do nothing that it does not check.

use std::path::PathBuf;

pub const OPTIONS: &str = "
  --size SIZE      memory to use, such as 64MiB [128MiB]
  --seed N         of every random choice [1]
  --threads N      [3]
  --seconds N      how long pressure goes on [5]
  --count N        how often, where something is repeated [12]
  --without LIST   what pressure leaves out: remap,fork,drop,unmap,protect
  --how WORD       which way (exit, mlock)
  --code N         exit code [0]
  --signal N       that crash ends by [11]
  --file PATH      where a daemon writes its result
  --marker TEXT    that exec hands over
";

#[derive(Clone, Debug)]
pub struct Args {
    pub size: usize,
    pub seed: u64,
    pub threads: usize,
    pub seconds: u64,
    pub count: usize,
    pub without: Vec<String>,
    pub how: String,
    pub code: i32,
    pub signal: i32,
    pub file: Option<PathBuf>,
    pub marker: Option<String>,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            size: 128 << 20,
            seed: 1,
            threads: 3,
            seconds: 5,
            count: 12,
            without: Vec::new(),
            how: String::new(),
            code: 0,
            signal: libc::SIGSEGV,
            file: None,
            marker: None,
        }
    }
}

impl Args {
    pub fn parse(words: &[String]) -> Result<Args, String> {
        let mut args = Args::default();
        let mut words = words.iter();
        while let Some(name) = words.next() {
            let value = words.next().ok_or(format!("{name} wants a value"))?;
            match name.as_str() {
                "--size" => args.size = size(value)?,
                "--seed" => args.seed = number(value)?,
                "--threads" => args.threads = number(value)?.max(1) as usize,
                "--seconds" => args.seconds = number(value)?,
                "--count" => args.count = number(value)?.max(1) as usize,
                "--without" => args.without = value.split(',').map(str::to_string).collect(),
                "--how" => args.how = value.clone(),
                "--code" => args.code = number(value)? as i32,
                "--signal" => args.signal = number(value)? as i32,
                "--file" => args.file = Some(PathBuf::from(value)),
                "--marker" => args.marker = Some(value.clone()),
                _ => return Err(format!("there is no option {name}")),
            }
        }
        if args.size < 4 << 20 {
            return Err("--size must be 4MiB or more".to_string());
        }
        Ok(args)
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a number"))
}

/// Whole pages.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        other => return Err(format!("'{other}' is no unit: use KiB, MiB or GiB")),
    };
    Ok(((number(digits)? as usize) << shift) & !4095)
}
