//! Tables of Markdown, and what is drawn of them.

use muninn_plot::Bars;

/// The rows of the table whose head begins with these cells; each row has its cells.
fn rows<'a>(text: &'a str, head: &[&str]) -> Vec<Vec<&'a str>> {
    let cells = |line: &'a str| -> Option<Vec<&'a str>> {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        Some(inner.split('|').map(str::trim).collect())
    };
    let mut lines = text.lines();
    let found = lines.any(|line| cells(line).is_some_and(|cells| cells.starts_with(head)));
    assert!(found, "there is no table that begins with {head:?}");
    // The line below the head is but a rule.
    lines.skip(1).map_while(cells).collect()
}

/// `0.73 s`; nothing where a run did not end.
fn seconds(cell: &str) -> Option<f64> {
    cell.strip_suffix(" s")?.parse().ok()
}

/// `3,205`
fn number(cell: &str) -> Option<f64> {
    cell.replace(',', "").parse().ok()
}

/// How many times as long programs take as with all of their memory.
fn programs(paging: &str) -> String {
    let mut bars = Bars::new(
        "Programs with half and a quarter of their memory local",
        "times as long as with all of it (no bar: killed)",
    );
    let table = rows(paging, &["program", "local", "unlimited"]);
    for local in ["50 %", "25 %"] {
        for row in table.iter().filter(|row| row[1] == local) {
            let Some(alone) = seconds(row[2]) else {
                // Redis' requests are counted, not timed.
                continue;
            };
            let all = [("Muninn", row[3]), ("zram", row[4])];
            let times = all.map(|(name, cell)| Some((name, seconds(cell)? / alone)));
            let times: Vec<(&str, f64)> = times.into_iter().flatten().collect();
            bars = bars.group(format!("{}, {local}", row[0]), &times);
        }
    }
    bars.render()
}

/// What a page costs that comes back.
fn pages(paging: &str) -> String {
    let mut bars = Bars::new(
        "A page that is not here, 25 % of the memory local, one thread",
        "µs a page",
    );
    let names = ["Muninn, shm", "Muninn, tcp", "zram", "swap file"];
    let table = rows(paging, &["ns a page", "threads", "local"]);
    for row in table.iter().filter(|row| row[1] == "1" && row[2] == "25 %") {
        let costs = names.iter().zip(&row[3..7]);
        let costs = costs.filter_map(|(name, cell)| Some((*name, number(cell)? / 1000.0)));
        let costs: Vec<(&str, f64)> = costs.collect();
        bars = bars.group(row[0], &costs);
    }
    bars.render()
}

/// All charts, by the names of their files.
pub fn charts(paging: &str) -> [(&'static str, String); 2] {
    [
        ("programs.svg", programs(paging)),
        ("pages.svg", pages(paging)),
    ]
}
