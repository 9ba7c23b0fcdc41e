//! `muninn top`: servers and jobs, live, in a terminal.

mod draw;
mod model;
#[cfg(test)]
mod tests;

use crate::client::{Client, ClientArgs};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::observe::{Sampler, act, check_every};
use model::{Key, Model, Wish};
use muninn_types::parse_duration;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::Duration;

/// Between two looks at keys; a picture that has come meanwhile is drawn then.
const FRAME: Duration = Duration::from_millis(100);

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
    let client = args.client.resolve_if_any(&config.client)?;
    let sampler = Sampler::start(client.as_ref(), every);
    // It restores the terminal when the program panics, too.
    let mut terminal = ratatui::try_init().map_err(Failure::failed)?;
    let outcome = show(&mut terminal, &sampler, client.as_ref());
    ratatui::restore();
    outcome
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
        Wish::Limit { pid, job, size } => act::change_limit(*pid, job, *size),
        Wish::Drain { address } => act::drain(client, address, true),
        Wish::CancelDrain { address } => act::drain(client, address, false),
    }
}
