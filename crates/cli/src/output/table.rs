//! Tables for people.

use std::fmt::Write as _;

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::sanitized;

const HEAD: Style = Style::new().bold();
const GAP: usize = 2;

/// Columns under a head, each as wide as its widest cell.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, of as many cells as the head has.
    pub(crate) fn row(&mut self, cells: &[String]) {
        let cells = cells.iter().map(|cell| sanitized(cell).replace('\n', " "));
        self.rows.push(cells.collect());
    }

    /// The lines of the table. Long keys are not cut, so that they can be copied.
    pub(crate) fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                let widest = cells.map(|cell| cell.width()).max().unwrap_or_default();
                widest.max(self.head[column].width())
            })
            .collect();
        let mut text = String::new();
        let head: Vec<String> = self.head.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "{HEAD}{}{HEAD:#}", line(&head, &widths));
        for row in &self.rows {
            let _ = writeln!(text, "{}", line(row, &widths));
        }
        text
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(cell);
        let padding = width.saturating_sub(cell.width()) + GAP;
        line.extend(std::iter::repeat_n(' ', padding));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_on_a_terminal() {
        let mut table = Table::new(&["KEY", "OWNER"]);
        table.row(&["lock:a".into(), "x".into()]);
        table.row(&["lock:猫".into(), "y\u{7}".into()]);
        let text = anstream::adapter::strip_str(&table.text()).to_string();
        assert_eq!(text, "KEY      OWNER\nlock:a   x\nlock:猫  y\\u{7}\n");
    }
}
