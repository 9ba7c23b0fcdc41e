//! A plain table: words to the left, numbers to the right, two spaces between columns.

use std::fmt;

#[derive(Debug, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table {
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Table {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

fn is_number(cell: &str) -> bool {
    cell.is_empty()
        || cell == "-"
        || cell.starts_with(|c: char| c.is_ascii_digit() || "+-−".contains(c))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = |i: usize| self.rows.iter().map(move |row| row[i].as_str());
        let widths: Vec<usize> = (0..self.head.len())
            .map(|i| {
                column(i)
                    .chain([self.head[i].as_str()])
                    .map(|c| c.chars().count())
                    .max()
            })
            .map(Option::unwrap_or_default)
            .collect();
        let numeric: Vec<bool> = (0..self.head.len())
            .map(|i| column(i).all(is_number))
            .collect();
        let line = |cells: &[String]| {
            let mut text = String::new();
            for (i, cell) in cells.iter().enumerate() {
                let fill = " ".repeat(widths[i] - cell.chars().count());
                let gap = if i == 0 { "" } else { "  " };
                text += &if numeric[i] {
                    format!("{gap}{fill}{cell}")
                } else {
                    format!("{gap}{cell}{fill}")
                };
            }
            text.trim_end().to_string()
        };
        let head = line(&self.head);
        writeln!(f, "{head}")?;
        write!(
            f,
            "{}",
            "─".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1))
        )?;
        for row in &self.rows {
            write!(f, "\n{}", line(row))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_left_numbers_right() {
        let mut table = Table::new(["name", "ns"]);
        table.row(["read", "7"]).row(["write", "1234"]);
        assert_eq!(
            table.to_string(),
            "name     ns\n───────────\nread      7\nwrite  1234"
        );
    }
}
