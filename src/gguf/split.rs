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
    pub fn open(path: &Path, index: usize, header_only: bool) -> Result<Self, Error> {
        Self::from_map(Map::open(path)?, index, header_only)
    }

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
        Some(super::meta::Value::Str(name)) => Some(printable(name)),
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
