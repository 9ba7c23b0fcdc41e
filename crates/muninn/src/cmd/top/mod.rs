//! `muninn top`: servers and jobs, live, in a terminal.

mod draw;
mod model;
mod picture;
#[cfg(test)]
mod tests;

use crate::client::{Client, ClientArgs, default_socket};
use crate::cmd::run::limit;
use crate::config::Config;
use crate::failure::{Exit, Failure, Outcome};
use model::{Key, Model, Wish};
use muninn_net::{NetError, Observer};
use muninn_types::{Bytes, parse_duration};
use picture::Sampler;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::Duration;

/// Between two looks at keys; a picture that has come meanwhile is drawn then.
const FRAME: Duration = Duration::from_millis(100);
/// What clients get to move away, as with `muninn drain`.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);
const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn top
  muninn top --pool 10.0.0.5:7000,10.0.0.6:7000 --key-file ops.key
  muninn status --watch --json      (the same for scripts and logs)

Shows the jobs of 'muninn run' on this machine (of this user, and for root of everybody), and servers where
some are named or one listens at the default place. Press ? for what the columns and keys mean.")]
pub struct Args {
    #[command(flatten)]
    pub client: ClientArgs,

    /// How often everything is looked at
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub every: Duration,
}

pub fn run(args: &Args, config: &Config) -> Outcome {
    let every = check_every(args.every)?;
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: for files and scripts use 'muninn status --watch', with --json for one \
             object a line",
        ));
    }
    let named = !args.client.pool.is_empty() || !config.client.pool.0.is_empty();
    let client = match named || default_socket().exists() {
        true => Some(args.client.resolve(&config.client)?),
        false => None,
    };
    let sampler = Sampler::start(client, every);
    // For what is asked for by a key: a connection of its own, so that the pictures go on.
    let client = match named || default_socket().exists() {
        true => Some(args.client.resolve(&config.client)?),
        false => None,
    };
    // It restores the terminal when the program panics, too.
    let mut terminal = ratatui::try_init().map_err(Failure::failed)?;
    let outcome = show(&mut terminal, &sampler, client.as_ref());
    ratatui::restore();
    outcome
}

/// `--every` of this command and `--watch` of `status`.
pub fn check_every(every: Duration) -> Result<Duration, Failure> {
    if every < EVERY_MIN || every > EVERY_MAX {
        return Err(Failure::usage(
            "look no oftener than every 100ms and at least once in an hour: such as 1s",
        ));
    }
    Ok(every)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    sampler: &Sampler,
    client: Option<&Client>,
) -> Outcome {
    let mut model = Model::default();
    let mut changed = true;
    loop {
        if let Some(picture) = sampler.take() {
            model.handle_picture(picture);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| draw::draw(&model, frame))?;
        }
        if !event::poll(FRAME)? {
            continue;
        }
        changed = true;
        let Event::Key(pressed) = event::read()? else {
            continue;
        };
        let wish = match key(&pressed) {
            Some(key) => model.handle_key(key),
            None if is_interrupt(&pressed) => Wish::Quit,
            None => Wish::Nothing,
        };
        if wish == Wish::Quit {
            return Ok(());
        }
        if wish != Wish::Nothing {
            model.said = Some(match fulfil(&wish, client) {
                Ok(done) => done,
                Err(failure) => failure.message,
            });
            sampler.hurry();
        }
    }
}

fn is_interrupt(pressed: &KeyEvent) -> bool {
    pressed.code == KeyCode::Char('c') && pressed.modifiers.contains(KeyModifiers::CONTROL)
}

fn key(pressed: &KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release || is_interrupt(pressed) {
        return None;
    }
    Some(match pressed.code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => Key::Other,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(letter) => Key::Letter(letter),
        _ => return None,
    })
}

fn fulfil(wish: &Wish, client: Option<&Client>) -> Result<String, Failure> {
    match wish {
        Wish::Nothing | Wish::Quit => Ok(String::new()),
        Wish::Limit { pid, job, size } => change_limit(*pid, job, *size),
        Wish::Drain { address } => {
            drain(client, address, true)?;
            Ok(format!(
                "{address} drains: its clients move their pages elsewhere, if they can"
            ))
        }
        Wish::CancelDrain { address } => {
            drain(client, address, false)?;
            Ok(format!("{address} grants memory again"))
        }
    }
}

fn change_limit(pid: u32, name: &str, size: Bytes) -> Result<String, Failure> {
    limit::check(size, &format!("a limit of {size}"))?;
    let gone = || {
        Failure::new(
            Exit::Failed,
            format!("{name} ({pid}) has ended, or may not be changed by this user"),
        )
    };
    let job = muninn_job::find_by_pid(pid).ok_or_else(gone)?;
    let before = job.limit();
    job.set_limit(size);
    Ok(format!("{name}: the limit is {size} now, and was {before}"))
}

fn unreachable(error: NetError) -> Failure {
    Failure::new(Exit::Unreachable, error)
}

fn drain(client: Option<&Client>, address: &str, begin: bool) -> Outcome {
    let gone = || Failure::failed(format!("{address} is no server of this pool any more"));
    let client = client.ok_or_else(gone)?;
    let server = client
        .pool
        .iter()
        .find(|server| server.to_string() == address);
    let mut observer =
        Observer::connect(server.ok_or_else(gone)?, &client.options()).map_err(unreachable)?;
    observer
        .drain(begin.then_some(DRAIN_WITHIN))
        .map_err(unreachable)?;
    Ok(())
}
