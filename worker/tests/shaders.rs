//! The committed SPIR-V belongs to the sources beside it, and keeps what the numeric contract and old devices need.
//!
//! After a change of a shader: `TWINBAND_BLESS=1 cargo test -p twinband-worker --test shaders` compiles it anew with
//! `glslc` and writes `shaders/spv/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const OPTIONS: [&str; 3] = ["-O", "--target-env=vulkan1.0", "-Werror"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders")
}

fn spirv_path(name: &str) -> PathBuf {
    folder().join("spv").join(name).with_extension("spv")
}

/// Every shader: its name, and the hash of all that it is compiled from.
fn sources() -> BTreeMap<String, u64> {
    let common = fs::read(folder().join("common.glsl")).expect("common.glsl");
    let mut sources = BTreeMap::new();
    for entry in fs::read_dir(folder()).expect("shaders/") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "comp") {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let mut all = fs::read(&path).expect("a shader");
            all.extend(&common);
            all.extend(OPTIONS.join(" ").bytes());
            sources.insert(name, fnv1a(&all));
        }
    }
    sources
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

fn manifest(compiler: &str, sources: &BTreeMap<String, u64>) -> String {
    let mut text = format!(
        "# Written by worker/tests/shaders.rs: do not edit.\ncompiler {compiler}\n# shader, hash of its source, hash of its SPIR-V\n"
    );
    for (name, source) in sources {
        let spirv = fs::read(spirv_path(name)).expect("its SPIR-V");
        writeln!(text, "{name} {source:016x} {:016x}", fnv1a(&spirv)).expect("a string grows");
    }
    text
}

/// The version of `glslc` on one line, if it is there.
fn compiler() -> Option<String> {
    let output = Command::new("glslc").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().take_while(|l| !l.is_empty()).collect::<Vec<_>>().join(", "))
}

fn compile(name: &str, to: &Path) {
    let source = folder().join(name).with_extension("comp");
    let status = Command::new("glslc").args(OPTIONS).arg(source).arg("-o").arg(to).status();
    assert!(status.expect("glslc runs").success(), "{name} does not compile");
}

#[test]
fn the_committed_spirv_belongs_to_the_sources() {
    let sources = sources();
    assert!(!sources.is_empty());
    let path = folder().join("spv/MANIFEST");
    if std::env::var_os("TWINBAND_BLESS").is_some() {
        let compiler = compiler().expect("glslc is needed to compile shaders");
        sources.keys().for_each(|name| compile(name, &spirv_path(name)));
        fs::write(&path, manifest(&compiler, &sources)).expect("the manifest is written");
    }
    let found = fs::read_to_string(&path).expect("shaders/spv/MANIFEST");
    let compiler = found.lines().find_map(|l| l.strip_prefix("compiler ")).expect("a compiler");
    assert_eq!(
        found,
        manifest(compiler, &sources),
        "shaders/spv is out of date: run TWINBAND_BLESS=1 cargo test -p twinband-worker --test shaders"
    );
    let files = fs::read_dir(folder().join("spv")).expect("shaders/spv").count();
    assert_eq!(files, sources.len() + 1, "shaders/spv holds what belongs to no shader");
}

/// What matters in a module.
#[derive(Debug, Default)]
struct Module {
    capabilities: BTreeSet<u32>,
    extensions: usize,
    /// Results of float additions, subtractions, multiplications.
    floats: BTreeSet<u32>,
    /// Results that must not be contracted.
    exact: BTreeSet<u32>,
    /// Instructions that have no place here, by number.
    forbidden: Vec<u32>,
}

fn read(name: &str, bytes: &[u8]) -> Module {
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
    assert_eq!(words[0], 0x0723_0203, "{name}");
    assert!(words[1] <= 0x0001_0000, "{name} is of a later SPIR-V than Vulkan 1.0 takes");
    let mut module = Module::default();
    let mut rest = &words[5..];
    while let [head, ..] = rest {
        let (length, opcode) = ((head >> 16) as usize, head & 0xffff);
        let (op, after) = rest.split_at(length);
        match opcode {
            // OpCapability, OpExtension
            17 => drop(module.capabilities.insert(op[1])),
            10 => module.extensions += 1,
            // OpDecorate .. NoContraction
            71 if op[2] == 42 => drop(module.exact.insert(op[1])),
            // OpFAdd, OpFSub, OpFMul
            129 | 131 | 133 => drop(module.floats.insert(op[2])),
            // GLSL.std.450 has fma, pow, exp and the like; division, remainder, dot and matrix products; groups and
            // subgroups.
            12 | 136 | 140 | 141 | 142..=148 | 224 | 227..=242 | 261..=271 | 333..=366 => {
                module.forbidden.push(opcode)
            }
            _ => {}
        }
        rest = after;
    }
    module
}

fn check(name: &str, bytes: &[u8]) {
    let module = read(name, bytes);
    // Shader: what every Vulkan device has.
    assert_eq!(module.capabilities, BTreeSet::from([1]), "{name}: capabilities");
    assert_eq!((module.extensions, &module.forbidden[..]), (0, &[][..]), "{name}");
    assert!(module.floats.len() >= 2, "{name} computes nothing");
    let loose: Vec<_> = module.floats.difference(&module.exact).collect();
    assert!(loose.is_empty(), "{name}: a driver may fuse {loose:?}");
}

#[test]
fn shaders_need_no_features_and_let_no_driver_fuse() {
    for name in sources().keys() {
        check(name, &fs::read(spirv_path(name)).expect("its SPIR-V"));
    }
}

#[test]
fn shaders_still_compile_and_validate() {
    let Some(compiler) = compiler() else {
        eprintln!("SKIPPED: there is no glslc");
        return;
    };
    let scratch = tempfile::tempdir().expect("a folder");
    let listed = fs::read_to_string(folder().join("spv/MANIFEST")).expect("shaders/spv/MANIFEST");
    let same = listed.contains(&format!("compiler {compiler}\n"));
    for name in sources().keys() {
        let fresh = scratch.path().join(name);
        compile(name, &fresh);
        let bytes = fs::read(&fresh).expect("SPIR-V");
        check(name, &bytes);
        if same {
            assert!(
                bytes == fs::read(spirv_path(name)).expect("its SPIR-V"),
                "{name} compiles to something else"
            );
        }
        for path in [&fresh, &spirv_path(name)] {
            match Command::new("spirv-val").args(["--target-env", "vulkan1.0"]).arg(path).status() {
                Ok(status) => assert!(status.success(), "{name} is not valid"),
                Err(_) => eprintln!("SKIPPED in part: there is no spirv-val"),
            }
        }
    }
}
