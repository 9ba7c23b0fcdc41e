//! `muninn keygen`: keys for servers, their clients and those who run them.
//!
//! One shared key, or identities: an operator's, who signs those of servers and clients. Believing
//! another operator is a line in a file, which servers read again when it changes; so keys are
//! exchanged without a restart.

use crate::failure::{Failure, Outcome};
use crate::{key_file, ui};
use muninn_net::Key;
use muninn_proto::secure::{Credentials, Operator, Role, UnixTime};
use muninn_sys::clock;
use muninn_types::Bytes;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  muninn keygen /etc/muninn.key                  one key for all of a pool
  muninn keygen operator ops.key                 or: an operator, who vouches for
  muninn keygen server rack-1.key rack-1 --operator ops.key
  muninn keygen client batch.key batch --quota 64GiB --operator ops.key
  muninn keygen rotate batch.key --operator ops.key     another key for the same client
  muninn keygen client guest.key guest --valid 7d --operator ops.key    one that expires
  muninn serve --memory 64GiB --listen 10.0.0.5:7000 --key-file rack-1.key
  muninn run --local 4GiB --pool 10.0.0.5:7000 --key-file batch.key -- ./program"
)]
pub struct Args {
    /// File to write a shared key to; must not exist yet
    #[arg(required = true)]
    pub path: Option<PathBuf>,

    /// Print one JSON object instead of a sentence
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub what: Option<What>,
}

#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// An operator: signs identities, and may drain servers
    Operator {
        /// File to write; must not exist yet. Keep it where no server or client can read it
        path: PathBuf,
        /// A name for it
        #[arg(default_value = "operator")]
        name: String,
        #[command(flatten)]
        valid: Valid,
    },
    /// A server
    Server {
        /// File to write; must not exist yet
        path: PathBuf,
        /// A name for it
        name: String,
        /// The operator's file
        #[arg(long, value_name = "PATH")]
        operator: PathBuf,
        #[command(flatten)]
        valid: Valid,
    },
    /// A client
    Client {
        /// File to write; must not exist yet
        path: PathBuf,
        /// Its name: quotas, services and shares go by it
        name: String,
        /// The most memory that it may hold at each server
        #[arg(long, value_name = "SIZE")]
        quota: Option<Bytes>,
        /// The operator's file
        #[arg(long, value_name = "PATH")]
        operator: PathBuf,
        #[command(flatten)]
        valid: Valid,
    },
    /// Believe another operator as well: its public key goes into an identity's file
    Trust {
        /// The identity's file
        path: PathBuf,
        /// The operator's public key, as 'keygen operator' printed it
        public: String,
    },
    /// Believe an operator no more
    Distrust {
        /// The identity's file
        path: PathBuf,
        /// The operator's public key
        public: String,
    },
    /// A new key for an identity: its file gets another secret, signed by the operator named. Role, name,
    /// quota and whom it believes stay
    Rotate {
        /// The identity's file
        path: PathBuf,
        /// The operator's file: the old one's or a new one's
        #[arg(long, value_name = "PATH")]
        operator: PathBuf,
        #[command(flatten)]
        valid: Valid,
    },
    /// Believe one key no more, whoever signed it: its id goes into a server's file
    Revoke {
        /// The server's file
        path: PathBuf,
        /// The id of the key, as it was printed when it was made
        id: String,
    },
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Valid {
    /// How long the key is believed, such as 90d; then it takes another ('keygen rotate'). Without: until it is
    /// revoked
    #[arg(long, value_name = "TIME", value_parser = muninn_types::parse_duration)]
    pub valid: Option<Duration>,
}

impl Valid {
    /// Until when, from now on.
    fn until(self) -> Option<UnixTime> {
        let now = clock::unix();
        self.valid
            .map(|valid| UnixTime(now.saturating_add(valid.as_secs())))
    }
}

#[derive(Serialize)]
struct Shared {
    path: String,
    bits: usize,
}

#[derive(Serialize)]
struct Made {
    path: String,
    role: &'static str,
    name: String,
    id: String,
    /// The id of the key that it had, where it got another.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    /// Seconds since 1970; from then on it is not believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// Public keys of the operators that it believes; of an operator, its own.
    operators: Vec<String>,
}

pub fn run(args: &Args) -> Outcome {
    let Some(what) = &args.what else {
        return shared(args);
    };
    let (path, own) = match what {
        What::Operator { path, name, valid } => {
            let operator = Operator::from_seed(muninn_sys::rand::bytes());
            (path, sign(&operator, *valid, Role::Operator, name, None)?)
        }
        What::Server {
            path,
            name,
            operator,
            valid,
        } => {
            let operator = signer(operator)?;
            (path, sign(&operator, *valid, Role::Server, name, None)?)
        }
        What::Client {
            path,
            name,
            quota,
            operator,
            valid,
        } => {
            let (operator, quota) = (signer(operator)?, quota.map(|bytes| bytes.0));
            (path, sign(&operator, *valid, Role::Client, name, quota)?)
        }
        What::Trust { path, public } => {
            let public = parse_public(public)?;
            return change(args, path, |own| own.trust(public));
        }
        What::Distrust { path, public } => {
            let public = parse_public(public)?;
            return change(args, path, |own| own.distrust(public));
        }
        What::Rotate {
            path,
            operator,
            valid,
        } => {
            let operator = signer(operator)?;
            let old = identity(path)?;
            if old.identity().until.is_some() && valid.valid.is_none() {
                return Err(Failure::usage(format!(
                    "the key in {} expires: say how long the next one is believed, such as --valid 90d",
                    path.display()
                )));
            }
            let renewed = old.renew(&operator, valid.until(), muninn_sys::rand::bytes());
            let renewed = renewed.map_err(|error| Failure::usage(error.to_string()))?;
            key_file::replace(path, &renewed.to_text())?;
            report(args, path, &renewed, Some(old.identity().id));
            return Ok(());
        }
        What::Revoke { path, id } => return change(args, path, |own| own.revoke(id)),
    };
    key_file::write_new(path, &own.to_text())?;
    report(args, path, &own, None);
    Ok(())
}

fn shared(args: &Args) -> Outcome {
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    key_file::create(path)?;
    let path = path.display().to_string();
    if args.json {
        let bits = key_file::FRESH_LEN * 8;
        ui::print_json(&Shared { path, bits });
    } else {
        ui::print_out(&format!(
            "wrote a fresh key to {path}; give servers and their clients the same file \
             (--key-file {path})"
        ));
    }
    Ok(())
}

fn sign(
    operator: &Operator,
    valid: Valid,
    role: Role,
    name: &str,
    quota: Option<u64>,
) -> Result<Credentials, Failure> {
    let until = valid.until();
    let signed = operator.sign_until(until, role, name, quota, muninn_sys::rand::bytes());
    signed.map_err(|_| {
        Failure::usage(format!(
            "'{name}' cannot be a name: use 1 to 64 bytes without control characters"
        ))
    })
}

fn identity(path: &Path) -> Result<Credentials, Failure> {
    let key = key_file::read_any(path)?;
    key.credentials().cloned().ok_or_else(|| {
        Failure::usage(format!(
            "{} is not an identity: 'muninn keygen operator', 'server' and 'client' make them",
            path.display()
        ))
    })
}

fn signer(path: &Path) -> Result<Operator, Failure> {
    identity(path)?.operator().ok_or_else(|| {
        Failure::usage(format!(
            "{} cannot sign: name the file of an operator ('muninn keygen operator PATH' makes one)",
            path.display()
        ))
    })
}

fn parse_public(text: &str) -> Result<[u8; 32], Failure> {
    muninn_proto::secure::parse_public(text).ok_or_else(|| {
        Failure::usage(format!(
            "'{text}' is not an operator's public key: 64 hexadecimal digits, as 'muninn keygen \
             operator' prints them"
        ))
    })
}

/// Changes an identity's file, in one step for whoever reads it.
fn change(args: &Args, path: &Path, how: impl FnOnce(&mut Credentials)) -> Outcome {
    let mut own = identity(path)?;
    how(&mut own);
    // An identity that believes nobody is of no use, and would not be read again.
    Key::from_file_contents(own.to_text().as_bytes())
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    key_file::replace(path, &own.to_text())?;
    report(args, path, &own, None);
    Ok(())
}

fn report(args: &Args, path: &Path, own: &Credentials, before: Option<String>) {
    let who = own.identity();
    let hex = |key: &[u8; 32]| key.iter().map(|byte| format!("{byte:02x}")).collect();
    let operators: Vec<String> = own.operators().iter().map(hex).collect();
    if args.json {
        ui::print_json(&Made {
            path: path.display().to_string(),
            role: who.role.name(),
            name: who.name,
            id: who.id,
            before,
            expires: who.until.map(|until| until.0),
            operators,
        });
        return;
    }
    let (role, name, id) = (who.role.name(), who.name, who.id);
    let mut text = format!("{}: {role} '{name}', key {id}", path.display());
    if let Some(before) = before {
        text += &format!(", in place of {before}");
    }
    if let Some(until) = who.until {
        text += &format!("\nexpires {}", ui::date(until.0));
    }
    for operator in operators {
        text += &format!("\nbelieves operator {operator}");
    }
    ui::print_out(&text);
}
