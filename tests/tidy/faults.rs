//! The table of faults in docs/FAULTS.md: every number is there, and every test that it names.

use std::collections::BTreeMap;

use super::source::{is_word, lines};
use super::{Objection, files, read};

const TABLE: &str = "docs/FAULTS.md";

/// Where a test without a file stands.
const USUAL: &str = "tests/driver_faults.rs";

/// How many kinds of fault there are.
const FAULTS: usize = 45;

/// What is wrong with the table: rows that are missing or not in order, files that are not there, tests that are not in
/// their file, and rows without any. `sources` are the texts of the project's Rust files by their paths.
fn objections(table: &str, sources: &BTreeMap<String, String>) -> Vec<Objection> {
    let mut out = Vec::new();
    let mut rows = 0;
    for (line, row) in lines(table).filter(|(_, row)| row.starts_with("| V")) {
        let mut object = |what: String| out.push(Objection { line, what });
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, _, tests] = cells[..] else {
            object("a row has four cells: number, fault, what holds, tests".to_owned());
            continue;
        };
        rows += 1;
        if number != format!("V{rows:02}") {
            object(format!("V{rows:02} is due here, not {number}"));
        }
        let mut named = 0;
        for part in tests.split(';').map(str::trim) {
            let place = part.split([' ', ',', '.']).next().unwrap_or_default();
            let place = match part.strip_prefix('`').and_then(|rest| rest.split('`').next()) {
                Some(path) if path.ends_with(".rs") => Some(path.to_owned()),
                _ => [format!("tests/{place}.rs"), format!("{place}.rs")]
                    .into_iter()
                    .find(|path| sources.contains_key(path)),
            };
            named += usize::from(place.is_some());
            let place = place.unwrap_or_else(|| USUAL.to_owned());
            let Some(source) = sources.get(&place) else {
                object(format!("{number}: there is no {place}"));
                continue;
            };
            if !source.contains("#[test]") {
                object(format!("{number}: {place} has no tests"));
            }
            for name in part.split('`').skip(1).step_by(2).filter(|quoted| is_test_name(quoted)) {
                named += 1;
                if !has_test(source, name) {
                    object(format!("{number}: {place} has no test {name}"));
                }
            }
        }
        if named == 0 {
            object(format!("{number} names no test"));
        }
    }
    if rows != FAULTS {
        out.push(Objection { line: 1, what: format!("{rows} rows, not {FAULTS}") });
    }
    out
}

/// Tells a test's name, which is a sentence, from an order to a driver.
fn is_test_name(quoted: &str) -> bool {
    quoted.chars().all(is_word) && quoted.matches('_').count() >= 2
}

fn has_test(source: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let mut attribute = false;
    source.lines().map(str::trim).any(|line| {
        let found = attribute && line.starts_with(&head);
        attribute = line == "#[test]" || attribute && line.starts_with("#[");
        found
    })
}

#[test]
fn every_fault_names_tests_that_exist() {
    let rust = files().into_iter().filter(|path| path.ends_with(".rs"));
    let sources: BTreeMap<String, String> = rust.map(|path| (path.clone(), read(&path))).collect();
    let found = objections(&read(TABLE), &sources);
    let report: Vec<String> = found.iter().map(|o| format!("{TABLE}:{}: {}", o.line, o.what)).collect();
    assert!(report.is_empty(), "\n{}\n", report.join("\n"));
}

#[test]
fn the_rule_about_faults_can_object() {
    let source = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let sources = BTreeMap::from([
        source(USUAL, "#[test]\nfn a_b_c() {}\n#[cfg(unix)]\nfn no_test_this() {}"),
        source("tests/other.rs", "    #[test]\n    #[should_panic]\n    fn d_e_f() {}"),
        source("src/gpu/pure.rs", "#[test]\nfn g_h_i() {}"),
        source("src/gpu/bare.rs", "fn g_h_i() {}"),
    ]);
    let about_row = |number: usize, tests: &str| -> Vec<String> {
        let rows = (1..=FAULTS).map(|n| {
            let tests = if n == number { tests } else { "`a_b_c`" };
            format!("| V{n:02} | fault | what holds | {tests} |")
        });
        let table = rows.collect::<Vec<_>>().join("\n");
        objections(&table, &sources)
            .into_iter()
            .map(|o| {
                assert_eq!(o.line, number);
                o.what
            })
            .collect()
    };
    let none: Vec<String> = vec![];
    for right in [
        "`a_b_c` (`job=hang`), `a_b_c`; other `d_e_f`",
        "other. No more than that",
        "`src/gpu/pure.rs` unit `g_h_i`",
        "`src/gpu/pure.rs` units; `a_b_c`",
    ] {
        assert_eq!(about_row(3, right), none, "{right}");
    }
    for (wrong, what) in [
        ("`a_b_d`", "V03: tests/driver_faults.rs has no test a_b_d"),
        ("`no_test_this`", "V03: tests/driver_faults.rs has no test no_test_this"),
        ("`d_e_f`; other", "V03: tests/driver_faults.rs has no test d_e_f"),
        ("other `a_b_c`", "V03: tests/other.rs has no test a_b_c"),
        ("`src/gpu/gone.rs` unit", "V03: there is no src/gpu/gone.rs"),
        ("`src/gpu/bare.rs` unit", "V03: src/gpu/bare.rs has no tests"),
        ("every test", "V03 names no test"),
    ] {
        assert_eq!(about_row(3, wrong), [what], "{wrong}");
    }
    let what: Vec<String> = objections("| V02 | a | b | `a_b_c` |\n| V02 | a |", &sources)
        .into_iter()
        .map(|o| format!("{}: {}", o.line, o.what))
        .collect();
    assert_eq!(
        what,
        [
            "1: V01 is due here, not V02",
            "2: a row has four cells: number, fault, what holds, tests",
            "1: 1 rows, not 45"
        ]
    );
}
