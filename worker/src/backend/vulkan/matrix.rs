//! A matrix on the device, and products with it.
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::fs::File;
use std::rc::Rc;
use std::time::Duration;

use ash::vk;
use twinband_protocol::shm::{Activations, Part, Shared};
use twinband_protocol::{Fault, FaultCode, Job, Load, TILE};

use super::device::{Gpu, Owned};
use super::fault::fault;
use super::format::{self, Format, MAX_COLS};
use super::heap::Buffer;
use super::layout::{Bounds, Chunk, Dispatch, MAX_CHUNK, Shape, plan};
use super::memory::Use;
use super::options::Options;
use super::pace::Pace;
use super::pack;
use super::pipeline::{BINDINGS, PUSH_BYTES, Pipelines};
use super::upload::{Source, upload};

/// Recorded jobs that are kept. The engine asks for one range of rows, and for others while it calibrates.
const KEPT: usize = 8;

pub(super) struct Matrix {
    gpu: Rc<Gpu>,
    format: &'static Format,
    load: Load,
    shape: Shape,
    /// Most recently used first. Before what they use, so that they are dropped first.
    recorded: Vec<Recorded>,
    chunks: Vec<(Chunk, Buffer)>,
    sets: Vec<vk::DescriptorSet>,
    _descriptors: Owned<vk::DescriptorPool>,
    pipeline: Rc<Owned<vk::Pipeline>>,
    layout: vk::PipelineLayout,
    input: Input,
    output: Buffer,
    fence: Owned<vk::Fence>,
    packed: Vec<u8>,
    raw: Vec<u8>,
    options: Options,
}

/// Activations on the device: codes, then from `meta` on scales and sums.
struct Input {
    /// Read by the shaders.
    device: Buffer,
    /// Where the CPU writes, if it cannot reach the other.
    host: Option<Buffer>,
    /// Where the scales begin: a whole number of the alignment that bindings need.
    meta: u64,
    size: u64,
}

/// Command buffers for a range of rows, one a submit.
struct Recorded {
    first: u32,
    rows: u32,
    /// The bound that the work was cut by, as far as it matters.
    submit: u32,
    /// Keeps the command buffers.
    _pool: Owned<vk::CommandPool>,
    commands: Vec<vk::CommandBuffer>,
}

impl Matrix {
    /// Brings rows to the device.
    pub fn load(
        gpu: &Rc<Gpu>,
        pipelines: &mut Pipelines,
        load: &Load,
        model: &File,
        activations: Activations,
        options: Options,
    ) -> Result<Self, Fault> {
        let format = check(load, model, activations)?;
        let shape = Shape { rows: load.rows, row_bytes: load.row_bytes };
        let limits = &gpu.found.limits;
        let most = u64::from(limits.max_storage_buffer_range)
            .min(gpu.found.max_allocation.unwrap_or(u64::MAX))
            .min(options.chunk.unwrap_or(u64::MAX));
        let input_bytes = format.codes_bytes(load.cols).max(format.meta_bytes(load.cols));
        let too_large = || fault(FaultCode::Format, format!("rows of {} elements do not fit", load.cols));
        let chunks = shape.chunks(most).ok_or_else(too_large)?;
        if input_bytes.max(u64::from(load.rows) * 4)
            > u64::from(limits.max_storage_buffer_range).min(MAX_CHUNK)
        {
            return Err(too_large());
        }

        let pipeline = pipelines.get(format)?;
        let how = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_DST;
        let buffer = |c: Chunk| {
            let size = u64::from(c.tiles) * shape.tile_bytes();
            Buffer::new(gpu, "weights", size, how, Use::Weights).map(|b| (c, b))
        };
        let chunks = chunks.into_iter().map(buffer).collect::<Result<Vec<_>, _>>()?;
        let input = Input::new(gpu, format, load.cols, options)?;
        let results = vk::BufferUsageFlags::STORAGE_BUFFER;
        let output = Buffer::new(gpu, "results", u64::from(load.rows) * 4, results, Use::Output)?;
        let block = load.interleaved.then_some(format.bytes);
        upload(gpu, shape, &chunks, &Source { file: model, offset: load.offset, block })?;
        let (descriptors, sets) = bind(gpu, pipelines, &chunks, &input, &output)?;
        Ok(Self {
            gpu: gpu.clone(),
            format,
            load: *load,
            shape,
            recorded: Vec::new(),
            chunks,
            sets,
            _descriptors: descriptors,
            pipeline,
            layout: pipelines.layout.raw,
            input,
            output,
            fence: gpu.fence()?,
            packed: Vec::new(),
            raw: Vec::new(),
            options,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let chunks: u64 = self.chunks.iter().map(|(_, b)| b.size()).sum();
        let host = self.input.host.as_ref().map_or(0, Buffer::size);
        chunks + self.input.device.size() + host + self.output.size()
    }

    /// Computes a job; its results are in the shared buffer afterwards. Returns the time from submission to the fence.
    pub fn run(&mut self, job: &Job, shared: &Shared, pace: &mut Pace) -> Result<Duration, Fault> {
        let layout = shared.layout();
        let first = job.first.checked_sub(self.load.first).filter(|f| f.is_multiple_of(TILE));
        let first = first.filter(|f| f.checked_add(job.rows).is_some_and(|end| end <= self.load.rows));
        let fits = job.slot < layout.slots
            && job.rows <= layout.rows
            && layout.cols == self.load.cols
            && layout.activations == self.format.activations;
        let Some(first) = first.filter(|_| fits) else {
            return Err(fault(FaultCode::Input, format!("{job:?} does not fit what is loaded")));
        };
        if job.rows == 0 {
            return Ok(Duration::ZERO);
        }
        self.put_activations(job.slot, shared)?;
        let bytes = u64::from(job.rows) * 4;
        if self.options.nan {
            self.output.fill(bytes, |all| all.fill(0xff))?;
        }
        let tiles = job.rows.div_ceil(TILE);
        let submit = pace.tiles(self.shape.tile_bytes()).min(tiles);
        let index = self.recording(first, job.rows, submit)?;
        let took = self.gpu.run(&self.recorded[index].commands, self.fence.raw)?;
        pace.note(u64::from(tiles) * self.shape.tile_bytes(), took);
        self.output.read(bytes, |all| shared.write(job.slot, Part::Results, all))?;
        Ok(took)
    }

    fn put_activations(&mut self, slot: u32, shared: &Shared) -> Result<(), Fault> {
        let Self { raw, packed, input, format, .. } = self;
        let mut part = |part: Part| -> Vec<u8> {
            let mut bytes = std::mem::take(raw);
            bytes.resize(shared.layout().bytes(part), 0);
            shared.read(slot, part, 0, &mut bytes);
            bytes
        };
        let codes = part(Part::Codes);
        let scales = part(Part::Scales);
        let sums = part(Part::Sums);
        input.packed(format, &codes, &scales, &sums, packed);
        let target = input.host.as_mut().unwrap_or(&mut input.device);
        target.fill(input.size, |all| {
            let (data, rest) = all.split_at_mut(packed.len().min(all.len()));
            data.copy_from_slice(&packed[..data.len()]);
            rest.fill(0);
        })?;
        *raw = codes;
        Ok(())
    }

    /// The command buffers for a range of rows: index into `recorded`.
    fn recording(&mut self, first: u32, rows: u32, submit: u32) -> Result<usize, Fault> {
        let same = |r: &Recorded| (r.first, r.rows, r.submit) == (first, rows, submit);
        if let Some(at) = self.recorded.iter().position(same) {
            self.recorded[..=at].rotate_right(1);
            return Ok(0);
        }
        let groups = self.gpu.found.limits.max_compute_work_group_count;
        let most = self.options.groups.unwrap_or(u32::MAX);
        let bounds = Bounds { groups: [groups[0].min(most), groups[1].min(most)], submit };
        let chunks: Vec<Chunk> = self.chunks.iter().map(|(c, _)| *c).collect();
        let submits = plan(&chunks, first / TILE, rows, bounds);
        let count = u32::try_from(submits.len()).unwrap_or(u32::MAX);
        let (pool, commands) = self.gpu.commands(count)?;
        for (i, (commands, dispatches)) in commands.iter().zip(&submits).enumerate() {
            self.record(*commands, dispatches, i == 0, i + 1 == submits.len())?;
        }
        self.recorded.truncate(KEPT - 1);
        self.recorded.insert(0, Recorded { first, rows, submit, _pool: pool, commands });
        Ok(0)
    }

    fn record(
        &self,
        commands: vk::CommandBuffer,
        dispatches: &[Dispatch],
        begins: bool,
        ends: bool,
    ) -> Result<(), Fault> {
        let raw = &self.gpu.raw;
        let steps = self.format.steps(self.load.cols);
        let begin = vk::CommandBufferBeginInfo::default();
        // SAFETY: the command buffer is new; everything it names lives as long as this matrix, which drops recordings
        // first; offsets and counts come from the plan over the very chunks that are bound.
        unsafe {
            raw.begin_command_buffer(commands, &begin).map_err(self.gpu.failed("begin a command buffer"))?;
            if begins && let Some(host) = &self.input.host {
                let copy = [vk::BufferCopy::default().size(self.input.size)];
                raw.cmd_copy_buffer(commands, host.raw, self.input.device.raw, &copy);
                let (from, to) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::COMPUTE_SHADER);
                self.barrier(
                    commands,
                    (from, vk::AccessFlags::TRANSFER_WRITE),
                    (to, vk::AccessFlags::SHADER_READ),
                );
            }
            raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, self.pipeline.raw);
            let mut bound = None;
            for d in dispatches {
                if bound != Some(d.chunk) {
                    let set = [self.sets[d.chunk]];
                    let compute = vk::PipelineBindPoint::COMPUTE;
                    raw.cmd_bind_descriptor_sets(commands, compute, self.layout, 0, &set, &[]);
                    bound = Some(d.chunk);
                }
                let push = [d.first_tile, d.tiles, d.first_row, d.rows, self.shape.words(), steps];
                let push = push.map(u32::to_ne_bytes);
                let push = push.as_flattened();
                debug_assert_eq!(push.len(), PUSH_BYTES as usize);
                raw.cmd_push_constants(commands, self.layout, vk::ShaderStageFlags::COMPUTE, 0, push);
                raw.cmd_dispatch(commands, d.groups[0], d.groups[1], 1);
            }
            if ends {
                // Needed even for coherent memory: without it the results may still be in the device's caches.
                let (from, to) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineStageFlags::HOST);
                self.barrier(
                    commands,
                    (from, vk::AccessFlags::SHADER_WRITE),
                    (to, vk::AccessFlags::HOST_READ),
                );
            }
            raw.end_command_buffer(commands).map_err(self.gpu.failed("end a command buffer"))
        }
    }

    fn barrier(
        &self,
        commands: vk::CommandBuffer,
        (from, written): (vk::PipelineStageFlags, vk::AccessFlags),
        (to, read): (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let barrier = [vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(read)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the command buffer is being recorded.
        unsafe { self.gpu.raw.cmd_pipeline_barrier(commands, from, to, none, &barrier, &[], &[]) };
    }
}

/// Whether a matrix can be loaded at all; its format.
fn check(load: &Load, model: &File, activations: Activations) -> Result<&'static Format, Fault> {
    let format = format::of(load.format)
        .ok_or_else(|| fault(FaultCode::Format, format!("there is no shader for format {}", load.format)))?;
    if load.cols > MAX_COLS {
        let text = format!("rows of {} elements are too long, {MAX_COLS} is the most", load.cols);
        return Err(fault(FaultCode::Format, text));
    }
    let fits = format.row_bytes(load.cols) == Some(load.row_bytes)
        && load.rows > 0
        && load.row_bytes > 0
        && load.first.checked_add(load.rows).is_some()
        && load.first.is_multiple_of(TILE)
        && !(load.interleaved && format.block == 1)
        && activations == format.activations;
    if !fits {
        return Err(fault(FaultCode::Input, format!("{load:?} is no matrix of {}", format.name)));
    }
    let size = model.metadata().map_err(|e| fault(FaultCode::Input, format!("the model file: {e}")))?.len();
    let end = u64::from(load.rows) * u64::from(load.row_bytes);
    match load.offset.checked_add(end) {
        Some(end) if end <= size => Ok(format),
        _ => Err(fault(FaultCode::Input, format!("{load:?} goes beyond the file's {size} bytes"))),
    }
}

impl Input {
    fn new(gpu: &Rc<Gpu>, format: &Format, cols: u32, options: Options) -> Result<Self, Fault> {
        let align = gpu.found.limits.min_storage_buffer_offset_alignment.max(256);
        let meta = format.codes_bytes(cols).div_ceil(align).saturating_mul(align);
        let size = meta + format.meta_bytes(cols).max(4);
        let storage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_DST;
        let staged = || -> Result<Self, Fault> {
            let device = Buffer::new(gpu, "activations", size, storage, Use::Weights)?;
            let source = vk::BufferUsageFlags::TRANSFER_SRC;
            let host = Buffer::new(gpu, "staged activations", size, source, Use::Staging)?;
            Ok(Self { device, host: Some(host), meta, size })
        };
        if options.staged {
            return staged();
        }
        // Best is the device's own memory, written directly; across a bus, every workgroup would fetch it again.
        let device = Buffer::new(gpu, "activations", size, storage, Use::Input)?;
        if device.is_local() { Ok(Self { device, host: None, meta, size }) } else { staged() }
    }

    /// The bytes of the whole buffer, but for zeros at its end.
    fn packed(&self, format: &Format, codes: &[u8], scales: &[u8], sums: &[u8], out: &mut Vec<u8>) {
        pack::codes(format.codes, codes, out);
        if format.meta_words() > 0 {
            out.resize(self.meta as usize, 0);
            pack::meta(format, scales, sums, out);
        }
    }
}

/// Binds each chunk together with input and output.
fn bind(
    gpu: &Rc<Gpu>,
    pipelines: &Pipelines,
    chunks: &[(Chunk, Buffer)],
    input: &Input,
    output: &Buffer,
) -> Result<(Owned<vk::DescriptorPool>, Vec<vk::DescriptorSet>), Fault> {
    let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
    let sizes = [vk::DescriptorPoolSize::default()
        .ty(vk::DescriptorType::STORAGE_BUFFER)
        .descriptor_count(count.saturating_mul(BINDINGS))];
    let info = vk::DescriptorPoolCreateInfo::default().max_sets(count).pool_sizes(&sizes);
    // SAFETY: the device lives; `info` and what it points to live until the call returns.
    let pool = unsafe { gpu.raw.create_descriptor_pool(&info, None) };
    let pool = pool.map_err(gpu.failed("create a descriptor pool"))?;
    let pool = gpu.own(pool, |device, pool| {
        // SAFETY: whoever drops a pool has waited for the work that uses its sets.
        unsafe { device.destroy_descriptor_pool(pool, None) }
    });
    let layouts = vec![pipelines.bindings.raw; chunks.len()];
    let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool.raw).set_layouts(&layouts);
    // SAFETY: as above; the pool has room for these sets.
    let sets = unsafe { gpu.raw.allocate_descriptor_sets(&info) };
    let sets = sets.map_err(gpu.failed("allocate descriptor sets"))?;
    for ((_, weights), set) in chunks.iter().zip(&sets) {
        let range = |buffer: &Buffer, offset: u64, range: u64| {
            [vk::DescriptorBufferInfo::default().buffer(buffer.raw).offset(offset).range(range)]
        };
        let ranges: [_; BINDINGS as usize] = [
            range(weights, 0, weights.size()),
            range(&input.device, 0, input.meta),
            range(&input.device, input.meta, input.size - input.meta),
            range(output, 0, output.size()),
        ];
        let writes: Vec<_> = (0..)
            .zip(&ranges)
            .map(|(i, range)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(*set)
                    .dst_binding(i)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(range)
            })
            .collect();
        // SAFETY: the sets are new and have these bindings; the buffers live as long as the matrix that owns both.
        unsafe { gpu.raw.update_descriptor_sets(&writes, &[]) };
    }
    Ok((pool, sets))
}
