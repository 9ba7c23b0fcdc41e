//! The model as a picture of letters. Wide screens get more columns, never longer ones.

use super::model::{Focus, HISTORY_MAX, Model, Question};
use crate::observe::{JobRow, Rates, ServerRow};
use muninn_types::{Bytes, Class, format_duration};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Sparkline, Table, TableState};
use std::time::Duration;

const BAR_CELLS: usize = 16;
/// Below this width the least needed columns are left out.
const WIDE: u16 = 120;
const KEYS: &str = "↑↓ choose  tab jobs/servers  s sort  l limit  d drain  p pause  ? help  q quit";
const HELP: [&str; 13] = [
    "here      memory of a job on this machine; the bar is its part of the limit",
    "far       memory of a job at memory servers",
    "faults/s  touches of pages that were not there",
    "from far  those of them that had to be fetched",
    "waiting   part of the time in which somebody waited for a page;",
    "          more than 100% when several processes wait at once",
    "",
    "↑ ↓ j k   choose a row          tab  jobs or servers",
    "s         sort jobs by          p    pause",
    "l         change the limit of the chosen job",
    "d         drain the chosen server: its clients move away",
    "D         cancel that           q    quit",
    "          any key closes this",
];

fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub fn draw(model: &Model, frame: &mut Frame<'_>) {
    let servers = if model.servers.is_empty() {
        0
    } else {
        model.servers.len() as u16 + 3
    };
    let [head, top, middle, charts, foot] = Layout::vertical([
        Constraint::Length(1),
        // Jobs keep at least half of the screen.
        Constraint::Length(servers.min(frame.area().height / 3)),
        Constraint::Min(4),
        Constraint::Length(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(headline(model), head);
    if servers > 0 {
        draw_servers(model, frame, top);
    }
    draw_jobs(model, frame, middle);
    draw_charts(model, frame, charts);
    frame.render_widget(footer(model), foot);
    if model.help {
        draw_help(frame);
    }
}

fn headline(model: &Model) -> Line<'static> {
    let silent = model
        .servers
        .iter()
        .filter(|row| row.server.error.is_some())
        .count();
    let mut spans = vec![Span::styled("muninn top", bold())];
    let servers = match (model.servers.len(), silent) {
        (0, _) => "no servers named".to_string(),
        (all, 0) => count(all, "server"),
        (all, silent) => format!("{}, {silent} silent", count(all, "server")),
    };
    let mut text = format!(
        "   {servers}   {}   sorted by {}",
        count(model.jobs.len(), "job"),
        model.sort.name()
    );
    if model.paused {
        text += "   PAUSED";
    }
    spans.push(Span::raw(text));
    Line::from(spans)
}

fn footer(model: &Model) -> Line<'static> {
    match (&model.question, &model.said) {
        (Some(Question::Limit { job, typed, .. }), _) => Line::styled(
            format!("new limit of {job}, such as 512MiB: {typed}▏  (enter, or escape)"),
            bold(),
        ),
        (Some(Question::Drain { address }), _) => Line::styled(
            format!(
                "drain {address}, so that its clients move their pages elsewhere? y, or any other key"
            ),
            bold(),
        ),
        (None, Some(said)) => Line::styled(said.clone(), bold()),
        (None, None) => Line::styled(KEYS, dim()),
    }
}

/// A bar of fixed length; what is above the whole shows as full.
pub fn bar(part: u64, whole: u64) -> String {
    let cells = match whole {
        0 => 0,
        whole => ((part as f64 / whole as f64) * BAR_CELLS as f64).round() as usize,
    };
    // Something is never shown as nothing.
    let cells = cells.max(usize::from(part > 0)).min(BAR_CELLS);
    format!("{}{}", "█".repeat(cells), "·".repeat(BAR_CELLS - cells))
}

fn block(title: &str, focused: bool) -> Block<'static> {
    let style = if focused { bold() } else { dim() };
    Block::new()
        .borders(Borders::TOP)
        .title(format!(" {title} "))
        .title_style(style)
}

fn size(bytes: u64) -> String {
    Bytes(bytes).rounded()
}

fn per_second(bytes: f64) -> String {
    match bytes as u64 {
        0 => "-".to_string(),
        bytes => format!("{}/s", size(bytes)),
    }
}

fn number(rate: f64) -> String {
    match rate.round() as u64 {
        0 => "-".to_string(),
        n => n.to_string(),
    }
}

fn percent(part: f64) -> String {
    match (part * 100.0).round() as u64 {
        0 => "-".to_string(),
        n => format!("{n}%"),
    }
}

fn draw_servers(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let wide = area.width >= WIDE;
    let mut head = vec!["server", "granted", "", "sessions", "in", "out"];
    let mut widths = vec![
        Constraint::Min(16),
        Constraint::Length(19),
        Constraint::Length(BAR_CELLS as u16),
        Constraint::Length(8),
        Constraint::Length(11),
        Constraint::Length(11),
    ];
    if wide {
        head.push("held most by");
        widths.push(Constraint::Fill(1));
    }
    let rows = model
        .servers
        .iter()
        .map(|row| Row::new(server_cells(row, wide)));
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(dim()))
        .block(block("servers", model.focus == Focus::Servers))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default();
    if model.focus == Focus::Servers {
        state.select(Some(model.chosen_server()));
    }
    frame.render_stateful_widget(table, area, &mut state);
}

fn server_cells(row: &ServerRow, wide: bool) -> Vec<String> {
    let server = &row.server;
    if let Some(error) = &server.error {
        return vec![server.address.clone(), format!("silent: {error}")];
    }
    let drains = |left: u64| match left {
        0 => "drain is over".to_string(),
        left => format!("drains, {}", format_duration(Duration::from_millis(left))),
    };
    let held = server
        .drain_left_ms
        .map_or_else(|| bar(server.granted_bytes, server.pool_bytes), drains);
    let mut cells = vec![
        server.name.clone(),
        format!(
            "{} of {}",
            size(server.granted_bytes),
            size(server.pool_bytes)
        ),
        held,
        server.sessions.to_string(),
        per_second(row.rates.bytes_in),
        per_second(row.rates.bytes_out),
    ];
    if wide {
        let holders = server.holders.iter().take(3);
        let holders: Vec<String> = holders
            .map(|(name, bytes)| format!("{name} {}", size(*bytes)))
            .collect();
        cells.push(holders.join(", "));
    }
    cells
}

fn draw_jobs(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let widths = [
        Constraint::Min(12),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(if area.width >= WIDE {
            BAR_CELLS as u16
        } else {
            0
        }),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(if area.width >= WIDE { 11 } else { 0 }),
        Constraint::Length(if area.width >= WIDE { 11 } else { 0 }),
    ];
    let head = [
        "job", "pid", "limit", "here", "", "far", "faults/s", "from far", "waiting", "in", "out",
    ];
    let chosen = model.chosen_job();
    let (mut rows, mut remarks, mut selected) = (Vec::new(), Vec::new(), 0);
    for (at, row) in model.jobs.iter().enumerate() {
        if at == chosen {
            selected = rows.len();
        }
        rows.extend(job_rows(row));
        let first = rows.len() - notes(row).count();
        remarks.extend((first..).zip(notes(row)));
    }
    let empty = rows.is_empty();
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(dim()))
        .block(block("jobs on this machine", model.focus == Focus::Jobs))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default();
    if model.focus == Focus::Jobs && !empty {
        state.select(Some(selected));
    }
    frame.render_stateful_widget(table, area, &mut state);
    // A row of a table is cut into columns; a sentence has the whole line. Above the rows are a title and a head.
    let shown = state.offset()..state.offset() + usize::from(area.height.saturating_sub(2));
    for (at, text) in remarks.into_iter().filter(|(at, _)| shown.contains(at)) {
        let line = Rect {
            y: area.y + 2 + (at - shown.start) as u16,
            height: 1,
            ..area
        };
        frame.render_widget(Line::styled(format!("  ! {text}"), bold()), line);
    }
    if empty && area.height > 2 {
        let hint = Rect {
            y: area.y + 2,
            height: 1,
            ..area
        };
        frame.render_widget(
            Line::styled("none: 'muninn run --local SIZE -- CMD' starts one", dim()),
            hint,
        );
    }
}

fn cells(
    name: String,
    pid: u32,
    limit: String,
    here: (u64, u64),
    far: u64,
    rates: &Rates,
) -> Row<'static> {
    Row::new([
        name,
        pid.to_string(),
        limit,
        size(here.0),
        if here.1 > 0 {
            bar(here.0, here.1)
        } else {
            String::new()
        },
        size(far),
        number(rates.faults),
        number(rates.far),
        percent(rates.waiting),
        per_second(rates.bytes_in),
        per_second(rates.bytes_out),
    ])
}

/// The job; its processes, if there are several; and what somebody should know.
fn job_rows(row: &JobRow) -> Vec<Row<'static>> {
    let job = &row.job;
    let mut rows = vec![cells(
        job.name.clone(),
        job.launcher,
        size(job.limit_bytes),
        (job.here_bytes, job.limit_bytes),
        job.far_bytes,
        &row.rates,
    )];
    if job.processes.len() > 1 {
        for (process, rates) in job.processes.iter().zip(&row.processes) {
            rows.push(
                cells(
                    "  process".to_string(),
                    process.pid,
                    String::new(),
                    (process.here_bytes, 0),
                    process.far_bytes,
                    rates,
                )
                .style(dim()),
            );
        }
    }
    rows.extend(notes(row).map(|_| Row::default()));
    rows
}

/// What somebody should know of a job.
fn notes(row: &JobRow) -> impl Iterator<Item = String> + use<> {
    let job = &row.job;
    let gone = (!job.launcher_alive).then(|| "its launcher is gone".to_string());
    let waits = job.processes.iter().filter_map(|one| one.waits.clone());
    let all: Vec<String> = gone
        .into_iter()
        .chain(waits)
        .chain(job.message.clone())
        .collect();
    all.into_iter()
}

fn draw_charts(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let newest = model.history.back().copied().unwrap_or_default();
    let classes = busiest_class(model);
    type Chart = (String, fn(&Rates) -> f64);
    let charts: [Chart; 3] = [
        (format!("faults/s {}", number(newest.faults)), |r| r.faults),
        (format!("waiting {}", percent(newest.waiting)), |r| {
            r.waiting * 1000.0
        }),
        (
            format!(
                "traffic {}{classes}",
                per_second(newest.bytes_in + newest.bytes_out)
            ),
            |r| r.bytes_in + r.bytes_out,
        ),
    ];
    let areas: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3])
        .spacing(1)
        .areas(area);
    for ((title, value), area) in charts.into_iter().zip(areas) {
        let shown = usize::from(area.width).min(HISTORY_MAX);
        let skipped = model.history.len().saturating_sub(shown);
        let points: Vec<u64> = model
            .history
            .iter()
            .skip(skipped)
            .map(|rates| value(rates) as u64)
            .collect();
        let chart = Sparkline::default()
            .data(points)
            .block(block(&title, false));
        frame.render_widget(chart, area);
    }
}

/// The class with most of what passes at the servers.
fn busiest_class(model: &Model) -> String {
    let of = |class: Class| -> f64 {
        let rows = model.servers.iter();
        rows.map(|row| row.rates.classes[class.index()]).sum()
    };
    let most = Class::ALL
        .into_iter()
        .max_by(|a, b| of(*a).total_cmp(&of(*b)));
    match most.filter(|class| of(*class) >= 1.0) {
        Some(class) => format!(", most {}", class.name()),
        None => String::new(),
    }
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (78.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let middle = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, middle);
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" help ")),
        middle,
    );
}
