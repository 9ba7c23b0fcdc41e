//! Lines, steps and points over two number axes.

use crate::axis::Axis;
use crate::svg::Page;
use crate::{PlotError, write_file};
use std::fmt::Write;
use std::path::Path;

/// A line of at most this many points shows each of them.
const MARKED_POINTS_MAX: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Line,
    Step,
    Points,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    kind: Kind,
    points: Vec<(f64, f64)>,
}

/// A chart of lines, steps (each value holds until the next) and points.
///
/// ```
/// # let folder = std::env::temp_dir().join("muninn-plot-doc");
/// muninn_plot::Chart::new("Run time", "local memory, %", "s")
///     .line("far", vec![(20.0, 9.0), (50.0, 4.0), (100.0, 3.0)])
///     .y_range(0.0, 10.0)
///     .write(&folder.join("run-time.svg"))?;
/// # Ok::<(), muninn_plot::PlotError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    x_label: String,
    y_label: String,
    x_log: bool,
    y_log: bool,
    x_range: Option<(f64, f64)>,
    y_range: Option<(f64, f64)>,
    series: Vec<Series>,
}

impl Chart {
    pub fn new(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
    ) -> Chart {
        Chart {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            x_log: false,
            y_log: false,
            x_range: None,
            y_range: None,
            series: Vec::new(),
        }
    }

    fn with(mut self, name: impl Into<String>, kind: Kind, points: Vec<(f64, f64)>) -> Chart {
        self.series.push(Series {
            name: name.into(),
            kind,
            points,
        });
        self
    }
    /// Straight lines from point to point, in the order given.
    pub fn line(self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Chart {
        self.with(name, Kind::Line, points)
    }
    /// Each value holds until the next one (distributions, queues over time).
    pub fn step(self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Chart {
        self.with(name, Kind::Step, points)
    }
    pub fn points(self, name: impl Into<String>, points: Vec<(f64, f64)>) -> Chart {
        self.with(name, Kind::Points, points)
    }
    pub fn x_log(mut self) -> Chart {
        self.x_log = true;
        self
    }
    pub fn y_log(mut self) -> Chart {
        self.y_log = true;
        self
    }
    pub fn x_range(mut self, low: f64, high: f64) -> Chart {
        self.x_range = Some((low, high));
        self
    }
    pub fn y_range(mut self, low: f64, high: f64) -> Chart {
        self.y_range = Some((low, high));
        self
    }

    /// The chart as SVG text.
    pub fn render(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|s| s.name.as_str()).collect();
        let mut page = Page::new(&self.title, &names);
        let plane = page.plane;
        // Only points that can be drawn whole count, so that a lone NaN does not stretch an axis.
        let whole = |(x, y): &&(f64, f64)| {
            x.is_finite() && y.is_finite() && (!self.x_log || *x > 0.0) && (!self.y_log || *y > 0.0)
        };
        let points = || {
            self.series
                .iter()
                .flat_map(|s| s.points.iter())
                .filter(whole)
        };
        let span_x = (plane.left, plane.right);
        let span_y = (plane.bottom, plane.top);
        let x = Axis::fit(points().map(|p| p.0), self.x_range, self.x_log, span_x);
        let y = Axis::fit(points().map(|p| p.1), self.y_range, self.y_log, span_y);
        let (Some(x), Some(y), true) = (x, y, points().next().is_some()) else {
            page.x_name(&self.x_label);
            page.no_data();
            return page.finish();
        };
        page.y_axis(&y, &self.y_label);
        page.x_axis(&x, &self.x_label);
        page.clip();
        for (number, series) in self.series.iter().enumerate() {
            draw(&mut page, number, series, &x, &y);
        }
        page.unclip();
        page.frame();
        page.finish()
    }

    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        write_file(path.as_ref(), &self.render())
    }
}

fn draw(page: &mut Page, number: usize, series: &Series, x: &Axis, y: &Axis) {
    let mut path = String::new();
    let mut marks = Vec::new();
    // What was drawn last, in tenths of a pixel; a gap lifts the pen.
    let mut pen: Option<(i64, i64)> = None;
    for &(px, py) in &series.points {
        let (Some(px), Some(py)) = (x.px(px), y.px(py)) else {
            pen = None;
            continue;
        };
        let spot = ((px * 10.0).round() as i64, (py * 10.0).round() as i64);
        if pen == Some(spot) {
            continue;
        }
        let _ = match (pen, series.kind) {
            (None, _) => write!(path, "M{px:.1} {py:.1}"),
            (Some(_), Kind::Step) => write!(path, "H{px:.1}V{py:.1}"),
            (Some(_), _) => write!(path, "L{px:.1} {py:.1}"),
        };
        pen = Some(spot);
        marks.push((px, py));
    }
    if series.kind != Kind::Points && !path.is_empty() {
        page.stroke(&path, number, 2.0);
    }
    let marked = series.kind == Kind::Points
        || marks.len() == 1
        || (series.kind == Kind::Line && marks.len() <= MARKED_POINTS_MAX);
    if marked {
        for (px, py) in marks {
            page.marker(px, py, number);
        }
    }
}
