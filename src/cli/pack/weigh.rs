//! What errors of weights count while they are converted: importance data, held against what is to be done.

use std::path::Path;

use super::recipe::Choice;
use super::{names, printable};
use crate::cli::{Ui, Usage};
use crate::gguf::TensorInfo;
use crate::gguf::write::Writer;
use crate::model::names::{EMBEDDING, HEAD};
use crate::surgery::importance::Importance;
use crate::surgery::quantize;

/// Keys that say by what data a file was converted, as `llama-quantize` writes them.
pub const KEYS: [&str; 4] = [
    "quantize.imatrix.file",
    "quantize.imatrix.dataset",
    "quantize.imatrix.entries_count",
    "quantize.imatrix.chunks_count",
];

/// Notes the data in the metadata of the file that is to be written.
pub fn note(importance: &Importance, meta: &mut Writer) {
    let [file, dataset, entries, chunks] = KEYS;
    let origin = importance.origin();
    meta.str(file, &importance.path().to_string_lossy());
    if let Some(name) = &origin.dataset {
        meta.str(dataset, name);
    }
    meta.u32(entries, u32::try_from(importance.len()).unwrap_or(u32::MAX));
    if let Some(n) = origin.chunks {
        meta.u32(chunks, n);
    }
}

/// Opens the file, if there is one, and says for which tensors it has nothing. Data that is of use for none of them is an
/// error, and so is data of another shape.
pub fn open<'a>(
    path: Option<&Path>,
    plan: impl Iterator<Item = (&'a TensorInfo, &'a Choice)>,
    ui: &Ui,
) -> anyhow::Result<Option<Importance>> {
    let weighed: Vec<_> = plan
        .filter(|(tensor, choice)| tensor.ty != choice.ty && quantize::weighs_errors(choice.ty))
        .collect();
    let Some(path) = path else {
        return match weighed.iter().find(|(_, choice)| quantize::needs_importance(choice.ty)) {
            Some((tensor, choice)) => Err(Usage(format!(
                "{} is to become {}, which is of no use without importance data: give --imatrix F",
                printable(tensor.name.as_bytes()),
                choice.ty
            ))
            .into()),
            None => Ok(None),
        };
    };
    let importance = Importance::open(path)?;
    if weighed.is_empty() {
        let types: Vec<_> =
            quantize::types().filter(|&ty| quantize::weighs_errors(ty)).map(|ty| ty.to_string()).collect();
        return Err(Usage(format!(
            "--imatrix has a use where matrices become one of {}: see --type",
            types.join(", ")
        ))
        .into());
    }
    let mut missing = Vec::new();
    let mut found = 0;
    for (tensor, choice) in weighed {
        if importance.of(tensor)?.is_some() {
            found += 1;
            continue;
        }
        anyhow::ensure!(
            !quantize::needs_importance(choice.ty),
            "{}: has no data of {}, which is to become {}, of no use without",
            path.display(),
            printable(tensor.name.as_bytes()),
            choice.ty
        );
        if ![EMBEDDING, HEAD].contains(&tensor.name.as_str()) {
            missing.push(tensor);
        }
    }
    anyhow::ensure!(
        found > 0,
        "{}: has data of {} matrices, but of none that is converted, such as {}: data of another model?",
        path.display(),
        importance.len(),
        missing.first().map_or_else(String::new, |t| printable(t.name.as_bytes()))
    );
    if !missing.is_empty() {
        ui.warn(format_args!(
            "{} has no data of {} tensors: {}; errors in all their columns count alike",
            path.display(),
            missing.len(),
            names(&missing)
        ));
    }
    Ok(Some(importance))
}
