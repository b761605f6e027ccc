//! Plots: lines through points, between two axes. [`Plot`] says what there is, [`Plot::drawn`] where on the paper it goes, and a
//! template writes that as SVG.
//!
//! Why our own: the plots must be readable on dark and on light ground and on paper, so their colours are classes that the page's
//! style sheet fills in; both axes are numbers, often logarithmic; and a reader of the page is to get nothing but the page. The
//! libraries that draw SVG write colours, and text in a font of their own, into it.
//!
//! No line is told from another by its colour alone: each has a shape at its points, which may be hollow, and may be dashed. What was
//! measured and counts for nothing is grey and dashed. From the lowest to the highest round a bar goes through a point. All marks of an
//! axis are in one unit.

use super::axis::{Axis, Scale};
use super::units::Unit;

/// The paper, in units of its own: the page scales it.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 310.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 18.0;
/// With an axis there.
const RIGHT_AXIS: f64 = 58.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// How wide a letter of a mark is, about, and what lies between two marks.
const LETTER: f64 = 6.4;
const GAP: f64 = 7.0;
/// From the middle of a point to its edge.
const POINT: f64 = 3.8;
/// Half of how wide the ends of a bar are.
const CAP: f64 = 3.0;
/// A level that is this much higher than everything else would press the lines to the ground: it is left out.
const WITHIN_SIGHT: f64 = 2.5;
/// Colours that the style sheet has.
const COLOURS: usize = 6;

/// A plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plot {
    /// What is shown, upwards.
    pub(super) title: String,
    /// What `x` is.
    pub(super) along: String,
    pub(super) x: Kind,
    pub(super) y: Kind,
    /// The same lines in another unit, on the right.
    pub(super) right: Option<Right>,
    pub(super) lines: Vec<Line>,
    /// Heights to compare with: what the network carries.
    pub(super) levels: Vec<Level>,
}

/// What the numbers along an axis are, and how they are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) unit: Unit,
    pub(super) scale: Scale,
}

impl Kind {
    /// Spread evenly, from zero.
    pub(super) fn linear(unit: Unit) -> Self {
        Self { unit, scale: Scale::Linear }
    }

    /// Equal ratios at equal distances.
    pub(super) fn log(unit: Unit) -> Self {
        Self { unit, scale: Scale::Log }
    }
}

/// A second unit for `y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Right {
    pub(super) unit: Unit,
    /// How much of `y` one of it is.
    pub(super) of: f64,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    /// Which colour and which shape its points have: by number, from 0, over again after the last.
    pub(super) colour: usize,
    pub(super) shape: usize,
    pub(super) dashed: bool,
    /// Points that are outlines.
    pub(super) hollow: bool,
    /// Shown, but nothing follows from it.
    pub(super) discounted: bool,
    /// `x`, and the lowest and the highest `y` there.
    pub(super) bars: Vec<(f64, f64, f64)>,
    /// `x` and `y`.
    pub(super) points: Vec<(f64, f64)>,
    /// The `x` of the point that stands out, and why it does.
    pub(super) marked: Option<(f64, String)>,
}

/// A height.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Level {
    pub(super) name: String,
    pub(super) y: f64,
}

impl Plot {
    /// Whether there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// The same in words, for a reader who does not see it.
    fn words(&self) -> String {
        let lines = self.lines.iter().filter_map(|line| {
            let (first, last) = (line.points.first()?, line.points.last()?);
            let at = |point: &(f64, f64)| format!("{} at {}", self.y.unit.write(point.1), self.x.unit.write(point.0));
            Some(format!("{}: from {} to {}", line.name, at(first), at(last)))
        });
        format!("{} against {}. {}.", self.title, self.along, lines.collect::<Vec<_>>().join("; "))
    }

    /// What goes where.
    pub(super) fn drawn(&self) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let xs: Vec<f64> = points().map(|point| point.0).collect();
        let mut ys: Vec<f64> = points().map(|point| point.1).collect();
        let highest = ys.iter().copied().fold(0.0, f64::max);
        let levels: Vec<&Level> = self.levels.iter().filter(|level| level.y <= highest * WITHIN_SIGHT).collect();
        ys.extend(levels.iter().map(|level| level.y));
        ys.extend(self.lines.iter().flat_map(|line| &line.bars).flat_map(|(_, low, high)| [*low, *high]));
        let right = WIDTH - if self.right.is_some() { RIGHT_AXIS } else { RIGHT };
        let paper = Paper { x: Axis::at(&xs, self.x.scale), y: Axis::around(&ys, self.y.scale), right };

        Drawn {
            title: self.title.clone(),
            along: self.along.clone(),
            words: self.words(),
            across: paper.marks_y(self.y.unit),
            down: paper.marks_x(self.x.unit),
            right: self.right.map(|right| paper.marks_right(right)).unwrap_or_default(),
            levels: levels
                .iter()
                .filter_map(|level| Some(Mark { at: px(paper.up(level.y)?), text: level.name.clone() }))
                .collect(),
            lines: self.lines.iter().map(|line| self.line(line, &paper)).collect(),
            edge: px(right),
        }
    }

    fn line(&self, line: &Line, paper: &Paper) -> DrawnLine {
        let mut points = Vec::new();
        let mut path = String::new();
        let mut marked = None;
        let bar = |(x, low, high): &(f64, f64, f64)| {
            let (across, bottom, top) = (paper.across(*x)?, paper.up(*low)?, paper.up(*high)?);
            let (left, right) = (px(across - CAP), px(across + CAP));
            let (bottom, top) = (px(bottom), px(top));
            Some(format!("M{left} {bottom}H{right}M{} {bottom}V{top}M{left} {top}H{right}", px(across)))
        };
        let bars = line.bars.iter().filter(|(_, low, high)| high > low).filter_map(bar).collect();
        for (x, y) in &line.points {
            let (Some(across), Some(up)) = (paper.across(*x), paper.up(*y)) else { continue };
            let mut text = format!("{}: {} at {}", line.name, self.y.unit.write(*y), self.x.unit.write(*x));
            if let Some((_, low, high)) = line.bars.iter().find(|bar| bar.0 == *x && bar.2 > bar.1) {
                text = format!("{text} (rounds: {} to {})", self.y.unit.write(*low), self.y.unit.write(*high));
            }
            if let Some((_, why)) = line.marked.as_ref().filter(|(at, _)| at == x) {
                text = format!("{text} ({why})");
                marked = Some(Place { x: px(across), y: px(up) });
            }
            path.push_str(&format!("{}{} {}", if path.is_empty() { "M" } else { "L" }, px(across), px(up)));
            points.push(DrawnPoint { path: shape(line.shape, across, up), text });
        }
        let name = match (&line.marked, &marked) {
            (Some((at, why)), Some(_)) => format!("{}, {why} at {}", line.name, self.x.unit.write(*at)),
            _ => line.name.clone(),
        };
        DrawnLine {
            name,
            class: [
                format!("c{}", line.colour % COLOURS),
                if line.dashed || line.discounted { " dashed" } else { "" }.to_owned(),
                if line.hollow { " hollow" } else { "" }.to_owned(),
                if line.discounted { " discounted" } else { "" }.to_owned(),
            ]
            .concat(),
            swatch: shape(line.shape, 14.0, 6.0),
            path,
            bars,
            points,
            marked,
        }
    }
}

/// The axes, and the right edge of what lies between them.
struct Paper {
    x: Axis,
    y: Axis,
    right: f64,
}

impl Paper {
    fn across(&self, x: f64) -> Option<f64> {
        self.x.place(x).map(|place| LEFT + place * (self.right - LEFT))
    }

    fn up(&self, y: f64) -> Option<f64> {
        self.y.place(y).map(|place| HEIGHT - BOTTOM - place * (HEIGHT - BOTTOM - TOP))
    }

    fn marks_y(&self, unit: Unit) -> Vec<Mark> {
        let common = unit.common(self.y.marks.iter().copied());
        let mark = |value: &f64| Some(Mark { at: px(self.up(*value)?), text: common.write(*value) });
        self.y.marks.iter().filter_map(mark).collect()
    }

    /// As many as there is room for.
    fn marks_x(&self, unit: Unit) -> Vec<Mark> {
        let mut free = f64::NEG_INFINITY;
        let mut marks = Vec::new();
        for value in &self.x.marks {
            let text = unit.write(*value);
            let half = text.chars().count() as f64 * LETTER / 2.0;
            let Some(at) = self.across(*value).filter(|at| at - half >= free) else { continue };
            free = at + half + GAP;
            marks.push(Mark { at: px(at), text });
        }
        marks
    }

    fn marks_right(&self, right: Right) -> Vec<Mark> {
        let highest = self.y.marks.last().copied().unwrap_or_default();
        let values = Axis::around(&[highest / right.of], Scale::Linear).marks;
        let within: Vec<f64> = values.into_iter().filter(|value| value * right.of <= highest * 1.000_001).collect();
        let common = right.unit.common(within.iter().copied());
        let mark = |value: f64| Some(Mark { at: px(self.up(value * right.of)?), text: common.write(value) });
        within.into_iter().filter_map(mark).collect()
    }
}

/// A plot on paper: every place is written already.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) title: String,
    pub(super) along: String,
    pub(super) words: String,
    /// The lines across, by their height.
    pub(super) across: Vec<Mark>,
    /// Below.
    pub(super) down: Vec<Mark>,
    pub(super) right: Vec<Mark>,
    pub(super) levels: Vec<Mark>,
    pub(super) lines: Vec<DrawnLine>,
    /// Where the lines across end.
    pub(super) edge: String,
}

impl Drawn {
    /// The sizes that the template needs: the paper's, and where between its axes begins and ends.
    pub(super) fn width(&self) -> f64 {
        WIDTH
    }

    pub(super) fn height(&self) -> f64 {
        HEIGHT
    }

    pub(super) fn left(&self) -> f64 {
        LEFT
    }

    pub(super) fn bottom(&self) -> f64 {
        HEIGHT - BOTTOM
    }

    pub(super) fn middle(&self) -> f64 {
        f64::midpoint(LEFT, WIDTH - RIGHT)
    }
}

/// A name beside an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) at: String,
    pub(super) text: String,
}

/// A line on paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DrawnLine {
    pub(super) name: String,
    pub(super) class: String,
    /// The shape of its points, for the legend.
    pub(super) swatch: String,
    pub(super) path: String,
    /// From the lowest to the highest round, with an end at both.
    pub(super) bars: Vec<String>,
    pub(super) points: Vec<DrawnPoint>,
    pub(super) marked: Option<Place>,
}

/// A point on paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DrawnPoint {
    pub(super) path: String,
    pub(super) text: String,
}

/// A place on paper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) x: String,
    pub(super) y: String,
}

fn px(place: f64) -> String {
    format!("{place:.1}")
}

/// The outline of a point: a disc, a square, a triangle, a diamond, a triangle on its head, a cross.
fn shape(number: usize, x: f64, y: f64) -> String {
    let r = POINT;
    let corners: &[(f64, f64)] = match number % 6 {
        0 => {
            let (left, d) = (px(x - r), px(2.0 * r));
            return format!("M{left} {}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z", px(y));
        }
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.25), (1.15, 0.85), (-1.15, 0.85)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        4 => &[(0.0, 1.25), (1.15, -0.85), (-1.15, -0.85)],
        _ => &[
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ],
    };
    let corners: Vec<_> = corners.iter().map(|(dx, dy)| format!("{} {}", px(x + dx * r), px(y + dy * r))).collect();
    format!("M{}Z", corners.join("L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throughput(points: &[(f64, f64)]) -> Plot {
        let line = Line { name: "forebay".into(), points: points.to_vec(), ..Line::default() };
        Plot {
            title: "Throughput".into(),
            along: "numjobs".into(),
            x: Kind::log(Unit::Number),
            y: Kind::linear(Unit::Rate),
            lines: vec![line],
            ..Plot::default()
        }
    }

    #[test]
    fn points_go_right_and_up() {
        let drawn = throughput(&[(1.0, 1e9), (2.0, 2e9), (4.0, 4e9)]).drawn();
        let places: Vec<(f64, f64)> = drawn.lines[0]
            .path
            .trim_start_matches('M')
            .split('L')
            .map(|place| place.split_once(' ').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert!(places.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1), "{places:?}");
        assert!(places.iter().all(|(x, y)| (LEFT..WIDTH).contains(x) && (TOP..HEIGHT - BOTTOM).contains(y)));
        assert_eq!(drawn.down.iter().map(|mark| mark.text.as_str()).collect::<Vec<_>>(), ["1", "2", "4"]);
        assert_eq!(drawn.across.last().unwrap().text, "4 GB/s");
        assert_eq!(drawn.words, "Throughput against numjobs. forebay: from 1 GB/s at 1 to 4 GB/s at 4.");
    }

    #[test]
    fn a_marked_point_is_named_in_the_legend_and_at_the_point() {
        let mut plot = throughput(&[(1.0, 1e9), (2.0, 2e9)]);
        plot.lines[0].marked = Some((2.0, "knee".into()));
        let line = plot.drawn().lines.remove(0);
        assert_eq!(line.name, "forebay, knee at 2");
        assert!(line.points[1].text.ends_with("2 GB/s at 2 (knee)") && line.marked.is_some());
        plot.lines[0].marked = Some((8.0, "knee".into()));
        assert_eq!(plot.drawn().lines[0].name, "forebay");
    }

    #[test]
    fn a_level_far_above_everything_is_left_out() {
        let level = |y| Level { name: "network".into(), y };
        let mut plot = throughput(&[(1.0, 1e9), (2.0, 2e9)]);
        plot.levels = vec![level(25e9), level(3e9)];
        let drawn = plot.drawn();
        assert_eq!(drawn.levels.len(), 1);
        assert_eq!(drawn.across.last().unwrap().text, "3 GB/s");
    }

    #[test]
    fn the_right_axis_names_the_same_heights_in_its_own_round_numbers() {
        let mut plot = throughput(&[(1.0, 4096e3), (2.0, 8192e3)]);
        plot.right = Some(Right { unit: Unit::Count, of: 4096.0 });
        let drawn = plot.drawn();
        let at = |marks: &[Mark], text: &str| {
            let mark = marks.iter().find(|mark| mark.text == text).unwrap_or_else(|| panic!("{text} in {marks:?}"));
            mark.at.parse::<f64>().unwrap()
        };
        // 2000 operations of 4 KiB are 8.192 MB.
        let per_megabyte = (at(&drawn.across, "0 MB/s") - at(&drawn.across, "8 MB/s")) / 8.0;
        assert!((at(&drawn.right, "0k") - at(&drawn.right, "2k") - per_megabyte * 8.192).abs() < 0.3);
    }

    #[test]
    fn marks_below_do_not_run_into_each_other() {
        let mut plot = throughput(&(0..200).map(|n| (1e9 + f64::from(n), 1.0)).collect::<Vec<_>>());
        plot.x = Kind::linear(Unit::Number);
        let marks = plot.drawn().down;
        let places: Vec<f64> = marks.iter().map(|mark| mark.at.parse().unwrap()).collect();
        assert!(places.len() > 1 && places.windows(2).all(|pair| pair[1] - pair[0] > 10.0 * LETTER));
    }

    #[test]
    fn values_without_a_place_are_left_out() {
        let mut plot = throughput(&[(1.0, f64::NAN), (2.0, 2e9), (4.0, 0.0)]);
        plot.y = Kind::log(Unit::Rate);
        let line = plot.drawn().lines.remove(0);
        assert_eq!(line.points.len(), 1);
        assert!(!line.path.contains("NaN"));
    }

    #[test]
    fn bars_go_from_the_lowest_to_the_highest_round_and_have_room() {
        let mut plot = throughput(&[(1.0, 1e9), (2.0, 2e9)]);
        plot.lines[0].bars = vec![(1.0, 1e9, 1e9), (2.0, 1.5e9, 7e9)];
        let drawn = plot.drawn();
        let line = &drawn.lines[0];
        assert_eq!(line.bars.len(), 1, "rounds that are the same have none");
        assert!(line.points[1].text.ends_with("2 GB/s at 2 (rounds: 1.5 GB/s to 7 GB/s)"), "{}", line.points[1].text);
        assert_eq!(drawn.across.last().unwrap().text, "8 GB/s");
    }

    #[test]
    fn what_does_not_count_looks_otherwise() {
        let mut plot = throughput(&[(1.0, 1e9), (2.0, 2e9)]);
        plot.lines[0].discounted = true;
        assert_eq!(plot.drawn().lines[0].class, "c0 dashed discounted");
        (plot.lines[0].discounted, plot.lines[0].hollow) = (false, true);
        assert_eq!(plot.drawn().lines[0].class, "c0 hollow");
    }

    #[test]
    fn every_shape_is_another() {
        let shapes: std::collections::BTreeSet<_> = (0..6).map(|number| shape(number, 10.0, 10.0)).collect();
        assert_eq!(shapes.len(), 6);
        assert_eq!(shape(7, 10.0, 10.0), shape(1, 10.0, 10.0));
    }
}
