//! From a model file and the engine's options to what a command works with.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;

use super::budget::{self, Wish};
use super::needs::{Items, Needs};
use super::options::EngineOptions;
use super::{Ui, report};
use crate::g2bx;
use crate::generate::{Vocabulary, memory};
use crate::gguf::{File, TensorInfo};
use crate::head::{self, Engine};
use crate::host::Host;
use crate::host::ahead::read_ahead;
use crate::kernel::format::{Format, Matrix};
use crate::kernel::isa::Isa;
use crate::model::{Model, Place, names};
use crate::tokenizer::template::{ChatTemplate, Origin};
use crate::tokenizer::{self, Tokenizer};

/// Opens a model file; weights stay on disk until they are used.
pub fn file(path: &Path) -> anyhow::Result<File> {
    Ok(g2bx::open(path)?)
}

/// A tensor of the file as a matrix of this format, which is that of its type.
pub fn matrix<'f>(
    file: &'f File,
    tensor: &TensorInfo,
    format: &'static Format,
) -> anyhow::Result<Matrix<'f>> {
    let (rows, cols) = (usize::try_from(tensor.rows())?, usize::try_from(tensor.dims[0])?);
    Ok(Matrix::new(format, file.data(tensor)?, rows, cols)?.with_layout(tensor.layout)?)
}

/// A model ready to run.
pub struct Loaded<'f> {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its weights, state and threads.
    pub engine: Engine<'f>,
    file: &'f File,
}

impl<'f> Loaded<'f> {
    /// Loads what the file describes, says with `-v` how much memory that takes, and takes it.
    pub fn new(file: &'f File, options: &EngineOptions, ui: &Ui) -> anyhow::Result<Self> {
        Self::with(file, options, ui, true)
    }

    /// The same for a command that has ids and encodes no text: it does without the tables for that.
    pub fn for_ids(file: &'f File, options: &EngineOptions, ui: &Ui) -> anyhow::Result<Self> {
        Self::with(file, options, ui, false)
    }

    fn with(file: &'f File, options: &EngineOptions, ui: &Ui, encodes: bool) -> anyhow::Result<Self> {
        let isa = Isa::by_name(&options.isa)?;
        options.memory.check()?;
        let swap = options.memory.limits.swap(ui)?;
        let host = Host::new();
        // Before there are threads: they inherit it.
        if let Err(error) = options.fast.then(Host::raise_priority).transpose() {
            ui.warn(format_args!(
                "--fast: the priority stays as it is: {error}; everything else is as asked"
            ));
        }
        let model = Model::load(file)?;
        let tokenizer = Tokenizer::from_gguf(file.meta(), &tokenizer::Options { pre: options.pre.clone() })?;
        let engine = std::thread::scope(|scope| {
            if encodes {
                // Beside what else there is to do. Without a thread the first text does it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, || tokenizer.prepare());
            }
            Self::engine(file, model, &tokenizer, options, (&host, swap, isa), ui)
        })?;
        memory::sample();
        Ok(Loaded { tokenizer, engine, file })
    }

    fn engine(
        file: &'f File,
        mut model: Model<'f>,
        tokenizer: &Tokenizer,
        options: &EngineOptions,
        (host, swap, isa): (&Host, Option<PathBuf>, Isa),
        ui: &Ui,
    ) -> anyhow::Result<Engine<'f>> {
        for warning in
            model.warnings.iter().map(String::as_str).chain(tokenizer.warnings().iter().map(String::as_str))
        {
            ui.warn(warning);
        }
        let limits = &options.memory.limits;
        let threads = options.threads(host);
        let mut chosen =
            head::EngineOptions { isa, exact: options.exact, ..head::EngineOptions::new(&model, threads) };
        let kv = options.kv(&model.config);
        chosen.kv = kv.into();
        chosen.batch = options.batch.unwrap_or(chosen.batch);
        chosen.ctx = options.ctx.unwrap_or(chosen.ctx);
        let trained = model.config.train_ctx;
        if chosen.ctx > trained {
            ui.warn(format_args!("--ctx {} is more than the {trained} tokens the model was trained on: text beyond is likely poor", chosen.ctx));
        }
        let needs = Needs::new(file, &model.outline, tokenizer, chosen).repacked(limits.repack);
        let wish = Wish { kv, ctx: chosen.ctx, least_ctx: options.least_ctx, swap: swap.is_some() };
        let available = host.available_memory();
        let mut items = needs.items(wish.kv, wish.ctx)?;
        let mut streamed = false;
        if let Some(max) = options.memory.limits.max_ram() {
            let choice = budget::choose(&needs, wish, max)?;
            let weights = needs.file();
            let short =
                available.is_some_and(|n| budget::own(&needs, &choice.items, wish.swap) + weights > n);
            (chosen.kv, chosen.ctx, items) = (choice.kv.into(), choice.ctx, choice.items);
            let batch = std::mem::replace(&mut chosen.batch, choice.batch);
            let read = choice.keep.map_or(0, |keep| model.stream(keep, short));
            streamed = choice.keep.is_some();
            if let Some(changes) = choice.changes(&wish, batch, read, weights) {
                ui.note(format_args!("--max-ram {}: {changes}", max / budget::MB));
            }
        }
        let place =
            swap.as_ref().map_or_else(String::new, |folder| format!(" in a file in {}", folder.display()));
        let copy = match items.repacked_bytes {
            0 => String::new(),
            bytes => format!("rearranged weights {}, ", report::bytes(bytes)),
        };
        let sizes = format!(
            "{copy}KV cache {} for {} tokens{place}, buffers {}, tokenizer {}, file {} mapped",
            report::bytes(items.kv_bytes),
            chosen.ctx,
            report::bytes(items.buffer_bytes),
            report::bytes(items.tokenizer_bytes),
            report::bytes(file.size())
        );
        ui.detail(format_args!("memory: {sizes}"));
        let own = items.own(wish.swap);
        if let Some(available) = available {
            if own > available {
                ui.warn(format_args!(
                    "{} available, but the full context needs more ({sizes}): lower --ctx",
                    report::bytes(available)
                ));
            } else if file.size() > available && !streamed {
                ui.warn(format_args!(
                    "{} available, less than the file's {}: weights will be read from disk again and again (--max-ram keeps \
                     what there is room for)",
                    report::bytes(available),
                    report::bytes(file.size())
                ));
            }
        }
        if limits.repack {
            repack(&mut model, &items, own, available, threads, ui)?;
        }
        if options.memory.mlock {
            lock(file, own, available, ui);
        }
        // Only what will stay: not what is given up after use, nor what there is no room for.
        let roomy = available.is_some_and(|n| file.size().saturating_add(own) <= n);
        if roomy && limits.max_ram().is_none() && !limits.repack {
            read_ahead(file.files());
        }
        let kv = swap.map_or(Place::Memory, Place::Folder);
        let mut engine = Engine::with_kv_in(model, &chosen, &kv)
            .with_context(|| format!("cannot set up the engine ({sizes})"))?;
        options.gpu.apply(&mut engine, ui)?;
        Ok(engine)
    }

    /// The chat template: the one wished for, else the model's own, else one that suits its vocabulary, saying so.
    pub fn template(&self, wish: Option<&str>, ui: &Ui) -> anyhow::Result<ChatTemplate> {
        let template = ChatTemplate::choose(self.file.meta(), &self.tokenizer, wish)?;
        match template.origin() {
            origin @ Origin::Fallback { .. } => ui.note(format_args!("chat template: {origin}")),
            origin => ui.detail(format_args!("chat template: {origin}")),
        }
        Ok(template)
    }

    /// The tensors that every token reads whole: all but an embedding that is not the head too, of which it reads a row.
    pub fn weights(&self) -> anyhow::Result<Vec<&'f [u8]>> {
        let file = self.file;
        let tied = names::is_tied(file);
        let tensors = file.tensors().iter().filter(|tensor| tied || tensor.name != names::EMBEDDING);
        Ok(tensors.map(|tensor| file.data(tensor)).collect::<Result<_, _>>()?)
    }
}

/// Rearranges the weights in memory, if there is room for that.
fn repack(
    model: &mut Model<'_>,
    items: &Items,
    own: u64,
    available: Option<u64>,
    threads: usize,
    ui: &Ui,
) -> anyhow::Result<()> {
    if items.repacked_bytes == 0 {
        ui.note("--repack: no matrix gains by it, or all lie in that order already, as in packed files");
        return Ok(());
    }
    // Of the rest most is taken later if ever, this at once.
    if let Some(available) = available.filter(|&n| n < items.fixed()) {
        let (available, own) = (report::bytes(available), report::bytes(own));
        anyhow::bail!("--repack: {available} available, and it takes {own} in all: leave it out");
    }
    let start = Instant::now();
    model.repack(threads)?;
    ui.detail(format_args!(
        "weights rearranged: {} in {:.0} ms",
        report::bytes(items.repacked_bytes),
        start.elapsed().as_secs_f64() * 1e3
    ));
    Ok(())
}

/// Keeps the file in memory if that leaves room for `own` bytes beside it and the system allows it; else says why not.
fn lock(file: &File, own: u64, available: Option<u64>, ui: &Ui) {
    let size = report::bytes(file.size());
    if let Some(available) = available.filter(|&n| n < file.size().saturating_add(own)) {
        let (available, own) = (report::bytes(available), report::bytes(own));
        ui.warn(format_args!(
            "--mlock: {available} available, less than the file's {size} and {own} beside it: not locked"
        ));
    } else if let Err(error) = file.lock() {
        ui.warn(format_args!(
            "--mlock: the system does not lock {size}: {error}; raise the limit on locked memory (ulimit -l)"
        ));
    }
}

/// A tokenizer's tokens as the user is to see them.
pub struct Shown<'a> {
    /// Whose.
    pub tokenizer: &'a Tokenizer,
    /// Show control tokens too.
    pub special: bool,
}

impl Vocabulary for Shown<'_> {
    fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        if self.special { self.tokenizer.piece_special(id) } else { self.tokenizer.piece(id) }
    }

    fn is_end(&self, id: u32) -> bool {
        self.tokenizer.is_end_of_generation(id)
    }
}
