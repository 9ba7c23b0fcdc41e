//! What every chart must be: well-formed, the same bytes each time, and never a panic.

use muninn_plot::{Bars, Chart};
use std::path::Path;

/// A strict little reader for the XML that we write: each tag closed in order, no stray `<` or `&`.
fn check_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag is closed");
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<'), "a tag inside a tag: {tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "an open quote: {tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or(tag));
        }
        rest = &rest[end + 1..];
    }
    assert_eq!(rest.trim(), "");
    assert!(open.is_empty(), "left open: {open:?}");
    assert!(
        !svg.contains("NaN") && !svg.contains("inf"),
        "not a number in a coordinate"
    );
}

fn check_text(text: &str) {
    for (at, _) in text.match_indices('&') {
        let entity = &text[at..];
        let known = ["&amp;", "&lt;", "&gt;", "&quot;"];
        assert!(
            known.iter().any(|k| entity.starts_with(k)),
            "stray & in {text}"
        );
    }
}

fn sample() -> Chart {
    Chart::new("a < b & \"c\"\u{7}", "x", "y")
        .line(
            "line",
            vec![
                (0.0, 1.0),
                (1.0, f64::NAN),
                (2.0, 4.0),
                (f64::INFINITY, 2.0),
            ],
        )
        .step("step", vec![(0.0, 0.0), (1.0, 2.0)])
        .points("points", vec![(0.5, -1.0)])
}

#[test]
fn charts_are_well_formed_and_deterministic() {
    check_well_formed(&sample().render());
    assert_eq!(sample().render(), sample().render());
    check_well_formed(&sample().x_log().y_log().render());
    check_well_formed(&sample().x_range(0.5, 0.6).y_range(1.0, 1.0).render());
    let bars = || {
        Bars::new("bars", "%")
            .group("first", &[("a", 1.0), ("b", -2.0)])
            .group("second", &[("b", f64::NAN), ("c", 1e9)])
    };
    check_well_formed(&bars().render());
    assert_eq!(bars().render(), bars().render());
}

#[test]
fn nothing_to_draw_says_so() {
    let charts = [
        Chart::new("t", "x", "y"),
        Chart::new("t", "x", "y").line("l", vec![]),
        Chart::new("t", "x", "y").line("l", vec![(f64::NAN, 1.0), (1.0, f64::NAN)]),
        Chart::new("t", "x", "y")
            .line("l", vec![(1.0, -1.0)])
            .y_log(),
        Chart::new("t", "x", "y")
            .x_range(0.0, 1.0)
            .y_range(0.0, 1.0),
    ];
    for chart in charts {
        let svg = chart.render();
        check_well_formed(&svg);
        assert!(svg.contains("no data"), "{svg}");
    }
    for bars in [
        Bars::new("t", "y"),
        Bars::new("t", "y").group("g", &[("a", f64::NAN)]),
    ] {
        let svg = bars.render();
        check_well_formed(&svg);
        assert!(svg.contains("no data"), "{svg}");
    }
}

#[test]
fn a_series_keeps_its_colour_in_every_group() {
    let svg = Bars::new("t", "y")
        .group("one", &[("a", 1.0), ("b", 2.0)])
        .group("two", &[("b", 2.0)])
        .render();
    assert_eq!(svg.matches("<rect x=").count(), 3);
    assert_eq!(
        svg.matches("fill=\"#D55E00\"/>").count(),
        2,
        "both bars of b"
    );
}

#[test]
fn writing_makes_the_folder_and_an_error_names_the_path() {
    let folder = std::env::temp_dir().join(format!("muninn-plot-{}", std::process::id()));
    sample().write(folder.join("deep/chart.svg")).unwrap();
    assert_eq!(
        std::fs::read_to_string(folder.join("deep/chart.svg")).unwrap(),
        sample().render()
    );
    std::fs::remove_dir_all(&folder).unwrap();
    let refused = sample()
        .write(Path::new("/dev/null/chart.svg"))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cannot write the chart /dev/null/chart.svg: Not a directory (os error 20)"
    );
}
