//! Checks on the shape of the source: who imports whom, where `unsafe` may stand, what the README must name.
//!
//! Every rule is a function from a file to the lines it objects to; the last test gives each of them something to
//! object to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use source::{code_of, lines, paths_under, words};

#[path = "tidy/faults.rs"]
mod faults;
#[path = "tidy/source.rs"]
mod source;

/// Which modules of ours a top-level module of `src` may name; its own paths are always allowed.
/// `ALL` is for the ends of the pipeline.
const IMPORTS: &[(&str, &[&str])] = &[
    ("host", &[]),
    ("kernel", &[]),
    ("sample", &[]),
    ("gguf", &["kernel::format"]),
    ("g2bx", &["gguf", "kernel::format"]),
    ("tokenizer", &["gguf", "kernel::format"]),
    ("gpu", &["twinband_protocol"]),
    ("model", &["kernel", "gguf", "g2bx"]),
    ("head", &["kernel", "model", "gpu"]),
    ("surgery", &["gguf", "kernel", "model"]),
    ("synth", &["gguf", "kernel", "sample"]),
    ("generate", &["model", "head", "tokenizer", "sample", "host"]),
    ("cli", ALL),
    ("main", ALL),
    ("lib", ALL),
];
const ALL: &[&str] = &["*"];

/// Exported macros stand at the root of the crate whatever module defines them: name, home.
const MACROS: &[(&str, &str)] = &[("simd", "kernel")];

/// Crates that only these files and folders may name.
const DOORS: &[(&str, &[&str])] = &[
    ("ash", &["tests/icd/src/", "worker/src/"]),
    ("bincode", &["worker/protocol/src/codec.rs"]),
    ("command_fds", &["src/gpu/process"]),
    ("gpu_allocator", &["worker/src/"]),
    ("memmap2", &["src/gguf/map.rs", "src/model/storage.rs", "worker/protocol/src/shm.rs"]),
    (
        "nix",
        &[
            "src/gpu/process",
            "src/gpu/link",
            "src/gguf/map.rs",
            "src/host/",
            "src/model/storage.rs",
            "worker/",
        ],
    ),
    ("rayon", &["src/kernel/par.rs"]),
    ("rustix", &["src/host/"]),
    ("shaderc", &["worker/build.rs"]),
];

/// Files that may contain `unsafe`; `*` stands for one name.
const UNSAFE: &[&str] = &[
    "src/gguf/map.rs",
    "src/kernel/format/*/avx2.rs",
    "src/kernel/format/drive/avx2/*",
    "src/kernel/format/drive/lines.rs",
    "src/kernel/format/drive/vnni/*",
    "src/kernel/isa/*",
    "src/kernel/par.rs",
    "src/model/storage.rs",
    "tests/common/counting.rs",
    "tests/icd/*/*",
    "worker/protocol/src/shm.rs",
    "worker/src/backend/vulkan/*",
    "worker/src/sandbox.rs",
];

/// Code that is unfinished, left over from debugging, or can end the program without a message.
const BANNED_CODE: &[&str] = &[".unwrap()", "todo!", "unimplemented!", "dbg!", "#[ignore"];

/// Places that exist on one machine only. Spelt in two halves, or this file would name them.
const BANNED_TEXT: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("../sh", "ared"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("crates", ".io/"),
    concat!("debian", ".org"),
];

const MAX_LINES: usize = 700;
const MAX_BYTES: u64 = 1_500_000;

/// A line a rule objects to.
#[derive(Debug, PartialEq, Eq)]
struct Objection {
    line: usize,
    what: String,
}

type Rule = fn(&str, &str) -> Vec<Objection>;

// ---------------------------------------------------------------------------------------------------- the rules

/// The import table, for files under `src`. Paths are found anywhere in the code, not only after `use`.
fn imports(path: &str, text: &str) -> Vec<Objection> {
    let Some(inside) = path.strip_prefix("src/").and_then(|p| p.strip_suffix(".rs")) else {
        return worker_imports(path, text);
    };
    let module: Vec<&str> = inside.split('/').filter(|part| *part != "mod").collect();
    let own = module[0];
    let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == own) else {
        return vec![Objection { line: 1, what: format!("module `{own}` has no line in the import table") }];
    };
    if *allowed == ALL {
        return vec![];
    }
    let is_ours = |name: &str| IMPORTS.iter().any(|(module, _)| *module == name);
    let code = code_of(text);
    let mut found = Vec::new();
    for root in ["crate", "twinband"] {
        found.extend(paths_under(&code, root));
    }
    found.extend(
        paths_under(&code, "twinband_protocol")
            .into_iter()
            .map(|(line, _)| (line, "twinband_protocol".to_owned())),
    );
    // `super` from the top of the file's module tree, which is `crate` by another name.
    let up = format!("{}super", "super::".repeat(module.len() - 1));
    found.extend(paths_under(&code, &up).into_iter().filter(|(_, p)| is_ours(first(p))));
    let home = |used: String| match MACROS.iter().find(|(name, _)| *name == used) {
        Some((_, module)) => format!("{module}::{used}"),
        None => used,
    };
    found
        .into_iter()
        .map(|(line, used)| (line, home(used)))
        .filter(|(_, used)| first(used) != own)
        .filter(|(_, used)| {
            first(used) == "twinband_protocol" || is_ours(first(used)) || !used.contains("::")
        })
        .filter(|(_, used)| !allowed.iter().any(|a| used == a || used.starts_with(&format!("{a}::"))))
        .map(|(line, used)| Objection { line, what: format!("`{own}` may not import `{used}`") })
        .collect()
}

/// The worker knows the protocol and nothing of the engine; the protocol knows neither.
fn worker_imports(path: &str, text: &str) -> Vec<Objection> {
    let forbidden: &[&str] = match path {
        _ if path.starts_with("worker/protocol/") => &["twinband", "twinband_worker"],
        _ if path.starts_with("worker/") => &["twinband"],
        _ => &[],
    };
    let code = code_of(text);
    let mut out = Vec::new();
    for name in forbidden {
        for (line, _) in paths_under(&code, name) {
            out.push(Objection { line, what: format!("{path} may not import `{name}`") });
        }
    }
    out
}

/// One crate, one door.
fn doors(path: &str, text: &str) -> Vec<Objection> {
    let code = code_of(text);
    let mut out = Vec::new();
    for (name, places) in DOORS {
        if places.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (line, content) in lines(&code) {
            let named = words(content).any(|(at, word)| {
                word == *name
                    && (content[at + word.len()..].trim_start().starts_with("::")
                        || content[..at].trim_end().ends_with("use"))
            });
            if named {
                out.push(Objection { line, what: format!("`{name}` belongs to {}", places.join(", ")) });
            }
        }
    }
    out
}

/// `unsafe`, and the attribute that permits it, only in the files of the list.
fn unsafe_files(path: &str, text: &str) -> Vec<Objection> {
    if UNSAFE.iter().any(|pattern| matches_pattern(path, pattern)) {
        return vec![];
    }
    let code = code_of(text);
    lines(&code)
        .filter(|(_, content)| words(content).any(|(_, word)| word == "unsafe"))
        .map(|(line, _)| Objection { line, what: "`unsafe` outside the files that may hold it".to_owned() })
        .collect()
}

fn banned_code(_: &str, text: &str) -> Vec<Objection> {
    let code = code_of(text);
    let mut out = Vec::new();
    for (line, content) in lines(&code) {
        for banned in BANNED_CODE.iter().filter(|banned| content.contains(*banned)) {
            out.push(Objection { line, what: format!("`{banned}`") });
        }
    }
    out
}

fn banned_text(path: &str, text: &str) -> Vec<Objection> {
    if path == "Cargo.lock" {
        return vec![];
    }
    let mut out = Vec::new();
    for (line, content) in lines(text) {
        for banned in BANNED_TEXT.iter().filter(|banned| content.contains(*banned)) {
            out.push(Objection { line, what: format!("names a place outside the project: {banned}") });
        }
    }
    out
}

fn whitespace(_: &str, text: &str) -> Vec<Objection> {
    lines(text)
        .filter(|(_, content)| content.contains('\t') || content.ends_with(char::is_whitespace))
        .map(|(line, _)| Objection { line, what: "tab or trailing white space".to_owned() })
        .collect()
}

fn length(_: &str, text: &str) -> Vec<Objection> {
    let n = text.lines().count();
    if n <= MAX_LINES {
        return vec![];
    }
    vec![Objection { line: n, what: format!("{n} lines; {MAX_LINES} is the most to read in one sitting") }]
}

fn first(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

fn matches_pattern(path: &str, pattern: &str) -> bool {
    let (path, pattern): (Vec<_>, Vec<_>) = (path.split('/').collect(), pattern.split('/').collect());
    path.len() == pattern.len() && path.iter().zip(pattern).all(|(part, p)| p == "*" || *part == p)
}

// --------------------------------------------------------------------------------------------- the source tree

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the project, relative to its root, build products and downloaded models excepted.
fn files() -> Vec<String> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if name == "target" || name == ".git" {
                continue;
            }
            if entry.file_type()?.is_dir() {
                walk(&path, out)?;
            } else if path.extension().is_none_or(|e| e != "gguf") || path.starts_with(root().join("tests")) {
                out.push(path);
            }
        }
        Ok(())
    }
    let mut paths = Vec::new();
    walk(root(), &mut paths).expect("the source tree is readable");
    let relative = |path: PathBuf| path.strip_prefix(root()).map(|p| p.to_string_lossy().replace('\\', "/"));
    let mut files: Vec<String> = paths.into_iter().map(|p| relative(p).expect("below the root")).collect();
    files.sort();
    assert!(files.iter().any(|f| f == "tests/tidy.rs"), "the walk over the source tree found {files:?}");
    files
}

/// Applies a rule to every UTF-8 file with one of the extensions (all files if none is given).
fn check(rule: Rule, extensions: &[&str]) {
    let mut report = String::new();
    for path in files() {
        let extension = path.rsplit_once('.').map_or("", |(_, e)| e);
        if !extensions.is_empty() && !extensions.contains(&extension) {
            continue;
        }
        let bytes = std::fs::read(root().join(&path)).expect("a file of the source tree is readable");
        if let Ok(text) = String::from_utf8(bytes) {
            for Objection { line, what } in rule(&path, &text) {
                report += &format!("\n{path}:{line}: {what}");
            }
        }
    }
    assert!(report.is_empty(), "{report}\n");
}

#[test]
fn modules_import_only_what_the_table_allows() {
    check(imports, &["rs"]);
}

#[test]
fn each_outside_crate_has_one_door() {
    check(doors, &["rs"]);
}

#[test]
fn unsafe_stays_in_its_files() {
    check(unsafe_files, &["rs"]);
}

#[test]
fn no_unfinished_code() {
    check(banned_code, &["rs"]);
}

#[test]
fn no_places_outside_the_project() {
    check(banned_text, &[]);
}

#[test]
fn no_tabs_or_trailing_white_space() {
    check(whitespace, &["rs", "sh", "toml", "py"]);
}

#[test]
fn files_are_short_enough_to_read() {
    check(length, &["rs", "sh", "py"]);
}

#[test]
fn files_are_small() {
    let large: Vec<String> = files()
        .into_iter()
        .filter(|path| std::fs::metadata(root().join(path)).is_ok_and(|m| m.len() > MAX_BYTES))
        .collect();
    assert!(large.is_empty(), "larger than {MAX_BYTES} bytes: {large:?}");
}

// ------------------------------------------------------------------------------------------------- the README

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The commands of the built program, from its own help.
fn commands() -> BTreeSet<String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_twinband")).arg("--help").output().expect("twinband starts");
    commands_of(&String::from_utf8_lossy(&output.stdout))
}

/// The first word of each line of the list under `Commands:`; deeper lines are wrapped descriptions.
fn commands_of(help: &str) -> BTreeSet<String> {
    help.lines()
        .skip_while(|line| line.trim() != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .map(str::to_owned)
        .collect()
}

/// The words that follow `twinband ` inside back quotes or after a shell's `$ `.
fn shown_commands(markdown: &str) -> BTreeSet<String> {
    let at = markdown.match_indices("twinband ").filter(|(at, _)| {
        let before = &markdown[..*at];
        before.ends_with('`') || before.ends_with("$ ") || before.ends_with('\n')
    });
    at.filter_map(|(at, name)| words(&markdown[at + name.len()..]).next())
        .map(|(_, word)| word.to_owned())
        .collect()
}

/// Links to files of the project that lead nowhere.
fn broken_links(path: &str, text: &str) -> Vec<Objection> {
    let from = root().join(path);
    let beside = from.parent().unwrap_or(root());
    let mut out = Vec::new();
    for (line, content) in lines(text) {
        for part in content.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap_or(part);
            if !target.contains("://") && !beside.join(target).exists() {
                out.push(Objection { line, what: format!("the link to {target} leads nowhere") });
            }
        }
    }
    out
}

/// Names of `wanted` that do not stand in `text` as words of their own.
fn unnamed<'a>(text: &str, wanted: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let known: BTreeSet<&str> = words(text).map(|(_, word)| word).collect();
    wanted.into_iter().filter(|name| words(name).any(|(_, part)| !known.contains(part))).collect()
}

#[test]
fn readme_shows_every_command_and_no_other() {
    assert_eq!(shown_commands(&read("README.md")), commands(), "left: README.md, right: twinband --help");
}

#[test]
fn links_lead_somewhere() {
    check(broken_links, &["md"]);
}

/// The rows of the table of imports in a Markdown text: module, what it may import.
fn documented_imports(markdown: &str) -> BTreeSet<(String, BTreeSet<String>)> {
    let mut out = BTreeSet::new();
    let table = markdown.lines().skip_while(|line| *line != "| module | may import |").skip(2);
    for row in table.take_while(|line| line.starts_with('|')) {
        let row = row.replace('`', "").replace('-', "_");
        let names = |cell: Option<&str>| -> BTreeSet<String> {
            let cell = cell.unwrap_or_default().trim();
            cell.split(", ").filter(|name| *name != "nothing of ours").map(str::to_owned).collect()
        };
        let mut cells = row.trim_matches('|').split('|');
        let (modules, allowed) = (names(cells.next()), names(cells.next()));
        out.extend(modules.into_iter().map(|module| (module, allowed.clone())));
    }
    out
}

#[test]
fn the_table_of_imports_is_documented_as_it_is() {
    let checked = IMPORTS.iter().filter(|(_, allowed)| *allowed != ALL).map(|(module, allowed)| {
        (module.to_string(), allowed.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>())
    });
    let mut documented = documented_imports(&read("docs/ARCHITECTURE.md"));
    documented.retain(|(module, _)| module != "cli" && module != "worker");
    assert_eq!(documented, checked.collect(), "left: docs/ARCHITECTURE.md, right: this test");
}

#[test]
fn readme_names_every_format_that_runs() {
    let formats: Vec<String> = twinband::kernel::format::all().map(|format| format.ty.to_string()).collect();
    assert!(formats.iter().any(|name| name == "Q4_0"), "{formats:?}");
    let missing = unnamed(&read("README.md"), formats.iter().map(String::as_str)).join(", ");
    assert!(missing.is_empty(), "README.md does not name the formats {missing}");
}

#[test]
fn readme_names_every_architecture() {
    let archs: Vec<String> = files()
        .iter()
        .filter_map(|path| path.strip_prefix("src/model/arch/")?.strip_suffix(".rs"))
        .filter(|name| !name.contains('/') && *name != "mod")
        .map(str::to_owned)
        .collect();
    let missing = unnamed(&read("README.md"), archs.iter().map(String::as_str)).join(", ");
    assert!(missing.is_empty(), "README.md does not name the architectures {missing}");
}

// ------------------------------------------------------------------------------------------- do the rules work?

#[test]
fn every_rule_can_object() {
    let lines_of = |rule: Rule, path: &str, text: &str| -> Vec<usize> {
        rule(path, text).into_iter().map(|objection| objection.line).collect()
    };
    let none: Vec<usize> = vec![];

    let kernel = "src/kernel/op/rope.rs";
    assert_eq!(lines_of(imports, kernel, "use super::par;\nuse crate::kernel::isa;"), none);
    assert_eq!(lines_of(imports, kernel, "use std::fmt;\nuse crate::{kernel::isa, model::State};"), [2]);
    assert_eq!(lines_of(imports, kernel, "fn f() { crate::gguf::open() }"), [1]);
    assert_eq!(lines_of(imports, kernel, "crate::simd! { fn f() {} }"), none);
    assert_eq!(lines_of(imports, "src/head/mod.rs", "use crate::simd;"), none);
    assert_eq!(lines_of(imports, "src/sample/mod.rs", "use crate::simd;"), [1]);
    assert_eq!(lines_of(imports, kernel, "use super::super::super::gguf;"), [1]);
    assert_eq!(lines_of(imports, kernel, "// crate::gguf::open()\nlet s = \"crate::gguf::X\";"), none);
    assert_eq!(lines_of(imports, "src/gguf/mod.rs", "use crate::kernel::format::{self, GgmlType};"), none);
    assert_eq!(lines_of(imports, "src/gguf/mod.rs", "use crate::kernel::{format::GgmlType, par};"), [1]);
    assert_eq!(lines_of(imports, "src/sample/mod.rs", "use twinband_protocol::Hello;"), [1]);
    assert_eq!(lines_of(imports, "src/gpu/mod.rs", "use twinband_protocol::Hello;"), none);
    assert_eq!(lines_of(imports, "src/novelty/mod.rs", ""), [1]);
    assert_eq!(
        lines_of(imports, "worker/src/main.rs", "use twinband::gguf::File;\nuse twinband_protocol::Exit;"),
        [1]
    );

    assert_eq!(lines_of(doors, "src/model/mod.rs", "\nuse rayon::prelude::*;"), [2]);
    assert_eq!(lines_of(doors, "src/cli/mod.rs", "let m = memmap2::Mmap::map(&f);\nlet crayon::x = y;"), [1]);
    assert_eq!(lines_of(doors, "src/kernel/par.rs", "use rayon::prelude::*;"), none);

    assert_eq!(lines_of(unsafe_files, "src/cli/run.rs", "unsafe { f() }\n#![forbid(unsafe_code)]"), [1]);
    assert_eq!(lines_of(unsafe_files, "src/kernel/format/q4_0/mod.rs", "/* a */ unsafe fn f();"), [1]);
    assert_eq!(lines_of(unsafe_files, "src/kernel/format/q4_0/avx2.rs", "unsafe fn f();"), none);

    assert_eq!(
        lines_of(banned_code, "src/a.rs", "x.unwrap();\ny.unwrap_or(1);\n#[ignore = \"slow\"]"),
        [1, 3]
    );
    assert_eq!(
        lines_of(banned_code, "src/a.rs", "todo!();\nlet c = '\"'; dbg!(c); // \"\nr#\"dbg!\"#"),
        [1, 2]
    );

    assert_eq!(lines_of(banned_text, "README.md", concat!("see /wo", "rk/main\nand work/main")), [1]);
    assert_eq!(lines_of(whitespace, "src/a.rs", "a\n\tb\nc \nd"), [2, 3]);
    assert_eq!(lines_of(length, "src/a.rs", &"x\n".repeat(MAX_LINES)), none);
    assert_eq!(lines_of(length, "src/a.rs", &"x\n".repeat(MAX_LINES + 1)), [MAX_LINES + 1]);

    let help = "Usage: x\n\nCommands:\n  run   Continues\n          a prompt\n  help  Prints\n\nOptions:\n  -h  Help\n";
    assert_eq!(commands_of(help), BTreeSet::from(["run".to_owned()]));
    let shown =
        shown_commands("`twinband run MODEL`, the twinband project\n$ twinband info X\ntwinband man > a");
    assert_eq!(shown, ["info", "man", "run"].map(str::to_owned).into());
    assert_eq!(
        lines_of(broken_links, "docs/A.md", "[a](https://x.y) [b](../Cargo.toml#c)\n[d](no/such.md)"),
        [2]
    );
    assert_eq!(unnamed("llama, qwen2", ["llama", "qwen", "gemma3"]), ["qwen", "gemma3"]);
}
