//! Split sets: one model in several files named `<prefix>-00001-of-000NN.gguf`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{Error, Fault, SplitFault, printable};
use super::header::{COUNT_LIMIT, Header};
use super::map::Map;
use super::meta::Meta;

/// The most parts of a set.
const PART_LIMIT: u64 = 10_000;

pub(super) const NO: &str = "split.no";
pub(super) const COUNT: &str = "split.count";
pub(super) const TENSORS: &str = "split.tensors.count";
const ARCHITECTURE: &str = "general.architecture";

/// One opened file.
pub(super) struct Part {
    pub map: Arc<Map>,
    pub header: Header,
}

impl Part {
    pub fn from_map(map: Map, index: usize, header_only: bool) -> Result<Self, Error> {
        let map = Arc::new(map);
        let header = Header::parse(&map, index, header_only).map_err(|fault| fault_in(map.path(), fault))?;
        Ok(Self { map, header })
    }
}

fn fault_in(path: &Path, fault: Fault) -> Error {
    Error::Fault { path: path.to_owned(), fault }
}

/// What a part says of the set it belongs to.
struct Claim {
    no: u64,
    count: u64,
    tensors: u64,
}

/// `None` if the file is a model of its own: a name that looks like a part's does not make it one.
fn claim(meta: &Meta) -> Result<Option<Claim>, SplitOr> {
    let get = |key| meta.unsigned(key, u64::MAX, "an integer, not negative");
    let count = match get(COUNT)? {
        None | Some(0 | 1) => return Ok(None),
        Some(count) => count,
    };
    let need = |key| get(key)?.ok_or(SplitOr::Split(SplitFault::NoKey { key }));
    let (no, tensors) = (need(NO)?, need(TENSORS)?);
    let limits = [(COUNT, count, PART_LIMIT), (TENSORS, tensors, COUNT_LIMIT), (NO, no, count - 1)];
    match limits.into_iter().find(|(_, value, limit)| value > limit) {
        Some((key, value, limit)) => Err(SplitFault::Count { key, value, limit }.into()),
        None => Ok(Some(Claim { no, count, tensors })),
    }
}

/// A fault of a part's metadata, or of the set.
enum SplitOr {
    Split(SplitFault),
    Meta(super::error::MetaError),
}

impl From<SplitFault> for SplitOr {
    fn from(fault: SplitFault) -> Self {
        Self::Split(fault)
    }
}

impl From<super::error::MetaError> for SplitOr {
    fn from(error: super::error::MetaError) -> Self {
        Self::Meta(error)
    }
}

impl SplitOr {
    fn at(self, path: &Path) -> Error {
        match self {
            Self::Split(fault) => Error::Split { path: path.to_owned(), fault },
            Self::Meta(error) => fault_in(path, error.into()),
        }
    }
}

/// The parts of a model, in order, and the paths of those that are not there.
pub(super) struct Parts {
    pub found: Vec<Part>,
    /// Only with `header_only`: otherwise a missing part is an error.
    pub missing: Vec<PathBuf>,
}

/// Finds the other parts of the set that `part`, opened by itself, belongs to.
pub(super) fn complete(part: Part, header_only: bool) -> Result<Parts, Error> {
    let path = part.map.path().to_owned();
    let Some(claim) = claim(&part.header.meta).map_err(|e| e.at(&path))? else {
        return Ok(Parts { found: vec![part], missing: Vec::new() });
    };
    let split = |path: &Path, fault| Error::Split { path: path.to_owned(), fault };
    let prefix = prefix(&path, &claim)
        .ok_or_else(|| split(&path, SplitFault::Name { no: claim.no + 1, count: claim.count }))?;

    let mut found = Vec::new();
    let mut missing = Vec::new();
    for no in 0..claim.count {
        let sibling = path.with_file_name(part_name(&prefix, no, claim.count));
        match Map::open(&sibling) {
            Ok(map) => found.push((no, map)),
            Err(Error::Open { .. } | Error::NotRegular { .. } | Error::Read { .. }) => {
                missing.push((no, sibling))
            }
            Err(other) => return Err(other),
        }
    }
    if !missing.is_empty() && !header_only {
        return Err(split(&path, SplitFault::Missing { count: claim.count, missing }));
    }

    let mut parts: Vec<Part> = Vec::with_capacity(found.len());
    for (no, map) in found {
        let part = Part::from_map(map, parts.len(), header_only)?;
        check_part(&part, no, &claim, parts.first()).map_err(|e| e.at(part.map.path()))?;
        parts.push(part);
    }
    let total: u64 = parts.iter().map(|p| p.header.tensors.len() as u64).sum();
    if total != claim.tensors && missing.is_empty() {
        let (found, expected) = (claim.tensors.to_string(), format!("{total}, the tensors of all parts"));
        return Err(split(&path, SplitFault::Differs { key: TENSORS, found, expected }));
    }
    Ok(Parts { found: parts, missing: missing.into_iter().map(|(_, path)| path).collect() })
}

/// Checks that the file found under the name of part `no` is that part.
fn check_part(part: &Part, no: u64, set: &Claim, first: Option<&Part>) -> Result<(), SplitOr> {
    fn same<T: PartialEq + ToString>(key: &'static str, found: T, expected: T) -> Result<(), SplitFault> {
        if found == expected {
            return Ok(());
        }
        Err(SplitFault::Differs { key, found: found.to_string(), expected: expected.to_string() })
    }
    let own = claim(&part.header.meta)?.ok_or(SplitFault::NoKey { key: COUNT })?;
    same(COUNT, own.count, set.count)?;
    same(NO, own.no, no)?;
    same(TENSORS, own.tensors, set.tensors)?;
    let Some(first) = first else { return Ok(()) };
    same("the GGUF version", part.header.version, first.header.version)?;
    same("general.alignment", part.header.alignment, first.header.alignment)?;
    // Parts after the first may leave it out.
    let text = |part: &Part| match part.header.meta.get(ARCHITECTURE) {
        Some(super::value::Value::Str(name)) => Some(printable(name)),
        _ => None,
    };
    match (text(part), text(first)) {
        (Some(found), Some(expected)) => Ok(same(ARCHITECTURE, found, expected)?),
        _ => Ok(()),
    }
}

/// The name of part `no`, counted from 0.
fn part_name(prefix: &str, no: u64, count: u64) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1)
}

/// What comes before `-00001-of-000NN.gguf`, if the file has the name of the part that it says it is.
fn prefix(path: &Path, claim: &Claim) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&part_name("", claim.no, claim.count))?;
    Some(prefix.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::File;
    use super::super::write::Writer;
    use super::*;
    use crate::kernel::format::GgmlType;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    /// Part `no` of `count`, holding one tensor `t<no>` of four bytes `no`.
    fn part(no: u32, count: u32, change: impl FnOnce(&mut Writer) -> &mut Writer) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(NO, no).u32(COUNT, count).value(TENSORS, super::super::Value::I32(3));
        if no == 0 {
            w.str(ARCHITECTURE, "llama").str("only", "here");
        }
        change(&mut w);
        let written = w.tensor(&format!("t{no}"), &[4], GgmlType(24)).map(drop);
        let bytes = written.and_then(|()| w.begin(Vec::new())).and_then(|mut data| {
            data.tensor(&[no as u8; 4])?;
            data.finish()
        });
        bytes.expect("a good part")
    }

    struct Set(tempfile::TempDir);

    impl Set {
        fn new() -> std::io::Result<Self> {
            let set = Self(tempfile::tempdir()?);
            for no in 0..3 {
                set.put(no, &part(no, 3, |w| w))?;
            }
            Ok(set)
        }

        fn path(&self, no: u32) -> PathBuf {
            self.0.path().join(part_name("tiny", no.into(), 3))
        }

        fn put(&self, no: u32, bytes: &[u8]) -> std::io::Result<()> {
            fs::write(self.path(no), bytes)
        }

        fn refused(&self, from: u32) -> String {
            File::open(&self.path(from)).expect_err("the set must be refused").to_string()
        }
    }

    #[test]
    fn opens_from_any_part() -> Outcome {
        let set = Set::new()?;
        for from in 0..3 {
            let file = File::open(&set.path(from))?;
            assert_eq!(file.path(), set.path(0));
            assert_eq!(file.parts().collect::<Vec<_>>(), [set.path(0), set.path(1), set.path(2)]);
            assert_eq!(file.meta().str("only")?, Some("here"));
            assert_eq!(
                file.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
                ["t0", "t1", "t2"]
            );
            for no in 0..3 {
                let tensor = file.tensor(&format!("t{no}")).ok_or("no tensor")?;
                assert_eq!(file.data(tensor)?, [no as u8; 4]);
                assert_eq!(tensor.part(), no);
            }
        }
        Ok(())
    }

    #[test]
    fn missing_parts_are_listed() -> Outcome {
        let set = Set::new()?;
        fs::remove_file(set.path(0))?;
        fs::remove_file(set.path(2))?;
        let text = set.refused(1);
        for no in [0, 2] {
            let expected =
                format!("missing or unreadable split GGUF part {}/3: {}", no + 1, set.path(no).display());
            assert!(text.contains(&expected), "{text}");
        }
        let header = File::open_header(&set.path(1))?;
        assert_eq!(header.missing(), [set.path(0), set.path(2)]);
        assert_eq!(header.tensors().len(), 1);
        Ok(())
    }

    #[test]
    fn parts_must_be_what_they_say() -> Outcome {
        let set = Set::new()?;
        let second = fs::read(set.path(1))?;
        for (bad, expected) in [
            (part(2, 3, |w| w), "split.no is 2, expected 1"),
            (part(1, 4, |w| w), "split.count is 4, expected 3"),
            (part(1, 3, |w| w.str(ARCHITECTURE, "qwen2")), "general.architecture is qwen2, expected llama"),
            (part(1, 3, |w| w.u32("general.alignment", 64)), "general.alignment is 64, expected 32"),
            ([b"GGUF", &[2, 0, 0, 0][..], &second[8..]].concat(), "the GGUF version is 2, expected 3"),
            (second[..second.len() - 1].to_vec(), "truncated: tensor t1"),
            (b"<!DOCTYPE html>".to_vec(), "HTML"),
        ] {
            set.put(1, &bad)?;
            let text = set.refused(0);
            assert!(text.contains(expected) && text.contains("tiny-00002-of-00003.gguf"), "{text}");
        }
        set.put(1, &part(1, 3, |w| w.str(ARCHITECTURE, "llama")))?;
        File::open(&set.path(0))?;
        Ok(())
    }

    #[test]
    fn tensors_are_counted_and_unique_across_parts() -> Outcome {
        let set = Set::new()?;
        let mut w = Writer::new();
        w.u32(NO, 1).u32(COUNT, 3).u32(TENSORS, 3);
        w.tensor("t0", &[4], GgmlType(24))?;
        let mut data = w.begin(Vec::new())?;
        data.tensor(&[0; 4])?;
        set.put(1, &data.finish()?)?;
        assert!(set.refused(0).contains("tensor t0 occurs twice"));

        let mut w = Writer::new();
        w.u32(NO, 1).u32(COUNT, 3).u32(TENSORS, 3);
        set.put(1, &w.begin(Vec::new())?.finish()?)?;
        assert!(set.refused(0).contains("split.tensors.count is 3, expected 2"), "{}", set.refused(0));
        Ok(())
    }

    #[test]
    fn names_that_do_not_lead_to_the_other_parts() -> Outcome {
        let set = Set::new()?;
        let dir = set.0.path();
        let cat: Vec<u8> = (0..3).flat_map(|no| part(no, 3, |w| w)).collect();
        for (name, bytes) in [("joined.gguf", cat), ("tiny-00001-of-00003.gguf", part(1, 3, |w| w))] {
            fs::write(dir.join(name), bytes)?;
            let text = File::open(&dir.join(name)).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains("does not follow <prefix>-00001-of-000NN.gguf"), "{name}: {text}");
        }
        Ok(())
    }

    #[test]
    fn names_do_not_make_a_set() -> Outcome {
        let dir = tempfile::tempdir()?;
        let alone = |count: Option<u32>| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
            let mut w = Writer::new();
            if let Some(count) = count {
                w.u32(COUNT, count);
            }
            Ok(w.begin(Vec::new())?.finish()?)
        };
        for (name, count) in [
            ("m-00001-of-00001.gguf", Some(1)),
            ("m-00001-of-00003.gguf", None),
            ("best-of-breed.gguf", None),
            ("zero.gguf", Some(0)),
        ] {
            fs::write(dir.path().join(name), alone(count)?)?;
            assert_eq!(File::open(&dir.path().join(name))?.parts().len(), 1, "{name}");
        }
        Ok(())
    }

    #[test]
    fn impossible_numbers() -> Outcome {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("tiny-00001-of-00003.gguf");
        for (no, count, tensors, expected) in [
            (3, 3, Some(3), "split.no is 3"),
            (0, 20_000, Some(3), "split.count is 20000"),
            (0, 3, Some(200_000), "split.tensors.count is 200000"),
            (0, 3, None, "without split.tensors.count"),
        ] {
            let mut w = Writer::new();
            w.u32(NO, no).u32(COUNT, count);
            if let Some(tensors) = tensors {
                w.u32(TENSORS, tensors);
            }
            fs::write(&path, w.begin(Vec::new())?.finish()?)?;
            let text = File::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains(expected), "{text}");
        }
        Ok(())
    }
}
