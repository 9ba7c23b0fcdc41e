//! The common frame of every chart: size, colours, text, legend.

use crate::axis::Axis;
use std::fmt::Write;

pub const WIDTH_PX: f64 = 900.0;
pub const HEIGHT_PX: f64 = 560.0;
const LEFT_PX: f64 = 78.0;
const RIGHT_PX: f64 = WIDTH_PX - 24.0;
const BOTTOM_PX: f64 = HEIGHT_PX - 58.0;
const LEGEND_TOP_PX: f64 = 58.0;
const LEGEND_ROW_PX: f64 = 19.0;
/// Estimated width of a letter of the legend; a little generous.
const LETTER_PX: f64 = 6.9;

/// Okabe and Ito's colours, told apart with any kind of colour vision, without their yellow, which
/// is too pale on white.
const PALETTE: [&str; 8] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F",
];
const DASHES: [&str; 3] = ["", "7 4", "2 3"];

pub fn colour(series: usize) -> &'static str {
    PALETTE[series % PALETTE.len()]
}

/// Series beyond the palette are told apart by dashes.
pub fn dash(series: usize) -> &'static str {
    DASHES[series / PALETTE.len() % DASHES.len()]
}

/// The part of the page that data is drawn in.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

#[derive(Debug)]
pub struct Page {
    text: String,
    pub plane: Plane,
}

impl Page {
    /// A white page with its title and legend; `legend` is the names in the order of their colours.
    pub fn new(title: &str, legend: &[&str]) -> Page {
        let mut page = Page {
            text: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH_PX}\" height=\"{HEIGHT_PX}\" \
                 viewBox=\"0 0 {WIDTH_PX} {HEIGHT_PX}\" role=\"img\" \
                 font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"#222222\">\n\
                 <title>{0}</title>\n\
                 <rect width=\"{WIDTH_PX}\" height=\"{HEIGHT_PX}\" fill=\"#FFFFFF\"/>\n\
                 <text x=\"{LEFT_PX}\" y=\"32\" font-size=\"18\" font-weight=\"bold\">{0}</text>\n",
                escaped(title)
            ),
            plane: Plane {
                left: LEFT_PX,
                right: RIGHT_PX,
                top: 52.0,
                bottom: BOTTOM_PX,
            },
        };
        page.legend(legend);
        page
    }

    fn legend(&mut self, names: &[&str]) {
        if names.iter().all(|name| name.is_empty()) {
            return;
        }
        let (mut x, mut y) = (LEFT_PX, LEGEND_TOP_PX);
        for (series, name) in names.iter().enumerate() {
            let width = 40.0 + name.chars().count() as f64 * LETTER_PX;
            if x > LEFT_PX && x + width > RIGHT_PX {
                (x, y) = (LEFT_PX, y + LEGEND_ROW_PX);
            }
            self.stroke(
                &format!("M{:.1} {:.1}H{:.1}", x, y - 4.0, x + 20.0),
                series,
                3.0,
            );
            self.marker(x + 10.0, y - 4.0, series);
            self.label(x + 26.0, y, "start", name);
            x += width;
        }
        self.plane.top = y + 16.0;
    }

    /// Grid lines and labels of a vertical axis, and what it counts.
    pub fn y_axis(&mut self, axis: &Axis, name: &str) {
        let Plane { left, right, .. } = self.plane;
        for (value, text) in axis.ticks() {
            if let Some(y) = axis.px(value) {
                self.grid(&format!("M{left:.1} {y:.1}H{right:.1}"));
                self.label(left - 8.0, y + 4.5, "end", &text);
            }
        }
        let middle = (self.plane.top + self.plane.bottom) / 2.0;
        let _ = writeln!(
            self.text,
            "<text transform=\"translate(20 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(name)
        );
    }

    /// Grid lines and labels of a horizontal axis, and what it counts.
    pub fn x_axis(&mut self, axis: &Axis, name: &str) {
        let Plane { top, bottom, .. } = self.plane;
        for (value, text) in axis.ticks() {
            if let Some(x) = axis.px(value) {
                self.grid(&format!("M{x:.1} {top:.1}V{bottom:.1}"));
                self.label(x, bottom + 19.0, "middle", &text);
            }
        }
        self.x_name(name);
    }

    pub fn x_name(&mut self, name: &str) {
        let middle = (self.plane.left + self.plane.right) / 2.0;
        self.label(middle, HEIGHT_PX - 14.0, "middle", name);
    }

    pub fn grid(&mut self, path: &str) {
        let _ = writeln!(
            self.text,
            "<path d=\"{path}\" stroke=\"#E3E3E3\" fill=\"none\"/>"
        );
    }

    /// The axes themselves, above the grid.
    pub fn frame(&mut self) {
        let Plane {
            left,
            right,
            top,
            bottom,
        } = self.plane;
        let _ = writeln!(
            self.text,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" stroke=\"#555555\" fill=\"none\"/>"
        );
    }

    pub fn no_data(&mut self) {
        let Plane {
            left,
            right,
            top,
            bottom,
        } = self.plane;
        self.frame();
        self.label(
            (left + right) / 2.0,
            (top + bottom) / 2.0,
            "middle",
            "no data",
        );
    }

    /// Everything until [`Page::unclip`] is cut off at the frame.
    pub fn clip(&mut self) {
        let Plane {
            left,
            right,
            top,
            bottom,
        } = self.plane;
        let _ = writeln!(
            self.text,
            "<clipPath id=\"plane\"><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/></clipPath>\n\
             <g clip-path=\"url(#plane)\">",
            left - 5.0,
            top - 5.0,
            right - left + 10.0,
            bottom - top + 10.0
        );
    }

    pub fn unclip(&mut self) {
        self.text.push_str("</g>\n");
    }

    pub fn stroke(&mut self, path: &str, series: usize, width: f64) {
        let dash = match dash(series) {
            "" => String::new(),
            pattern => format!(" stroke-dasharray=\"{pattern}\""),
        };
        let _ = writeln!(
            self.text,
            "<path d=\"{path}\" stroke=\"{}\" stroke-width=\"{width}\" fill=\"none\" stroke-linejoin=\"round\"{dash}/>",
            colour(series)
        );
    }

    /// A small shape that differs from series to series, for those who cannot tell the colours.
    pub fn marker(&mut self, x: f64, y: f64, series: usize) {
        let path = match series % 4 {
            0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
            1 => format!("M{:.1} {:.1}h7v7h-7Z", x - 3.5, y - 3.5),
            2 => format!("M{x:.1} {:.1}l4.5 8h-9Z", y - 5.0),
            _ => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5Z", y - 5.0),
        };
        let _ = writeln!(
            self.text,
            "<path d=\"{path}\" fill=\"{}\" stroke=\"#FFFFFF\" stroke-width=\"0.8\"/>",
            colour(series)
        );
    }

    pub fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, series: usize) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
            colour(series)
        );
    }

    pub fn label(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(text)
        );
    }

    pub fn small_label(&mut self, x: f64, y: f64, text: &str) {
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"10.5\">{}</text>",
            escaped(text)
        );
    }

    pub fn slanted_label(&mut self, x: f64, y: f64, text: &str) {
        let _ = writeln!(
            self.text,
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-28)\" text-anchor=\"end\" font-size=\"12\">{}</text>",
            escaped(text)
        );
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Estimated width of a word in the chart's common size.
pub fn text_width_px(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER_PX
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Control characters are not allowed in XML at all.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
