//! Whether the configuration is right.

use crate::checks::{Check, Section, Verdict};
use crate::facts::Facts;

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    const REMEDY: &str = "correct it; `forebay conf show` lists every key and where its value comes from; until then all \
                          other verdicts are on the defaults";
    let configuration = &facts.configuration;
    let check = |verdict, what: String| Check::new(Section::Configuration, "settings", verdict, what);
    if configuration.problems.is_empty() {
        let count = configuration.settings.len();
        return vec![check(Verdict::Ok, format!("good, {count} not at their defaults"))];
    }
    configuration.problems.iter().map(|problem| check(Verdict::Fail, problem.clone()).remedy(REMEDY)).collect()
}
