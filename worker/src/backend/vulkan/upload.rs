//! Rows from the model file to the device: read, put side by side in tiles, copied, a few megabytes at a time.
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use ash::vk;
use twinband_protocol::{Fault, FaultCode, TILE};

use super::super::groups::take_apart;
use super::device::Gpu;
use super::fault::fault;
use super::heap::Buffer;
use super::layout::{Chunk, Shape, interleave};
use super::memory::Use;

/// Bytes of the staging buffer. One tile always fits: the longest rows make one of this size.
const STAGING: u64 = 16 << 20;

/// Where rows lie in the model file.
pub(super) struct Source<'a> {
    pub file: &'a File,
    /// The first byte.
    pub offset: u64,
    /// Bytes of a block, if the blocks of neighbouring rows are interleaved.
    pub block: Option<u32>,
}

/// Fills the chunks' buffers with the rows of `source`.
pub(super) fn upload(
    gpu: &Rc<Gpu>,
    shape: Shape,
    chunks: &[(Chunk, Buffer)],
    source: &Source<'_>,
) -> Result<(), Fault> {
    let per_fill = u32::try_from(STAGING / shape.tile_bytes()).unwrap_or(u32::MAX).max(1);
    let most = chunks.iter().map(|(c, _)| c.tiles).max().unwrap_or(0).min(per_fill);
    let size = u64::from(most) * shape.tile_bytes();
    let mut staging = Buffer::new(gpu, "staging", size, vk::BufferUsageFlags::TRANSFER_SRC, Use::Staging)?;
    let (_pool, commands) = gpu.commands(1)?;
    let fence = gpu.fence()?;
    let tile_bytes = (u64::from(TILE) * u64::from(shape.row_bytes)) as usize;
    let (mut rows, mut apart) = (vec![0; tile_bytes], Vec::new());
    for (chunk, buffer) in chunks {
        for first in (0..chunk.tiles).step_by(per_fill as usize) {
            let tiles = per_fill.min(chunk.tiles - first);
            let bytes = u64::from(tiles) * shape.tile_bytes();
            let mut trouble = Ok(());
            staging.fill(bytes, |staging| {
                let outs = staging.chunks_exact_mut(shape.tile_bytes() as usize);
                for (tile, out) in (chunk.first_tile + first..).zip(outs) {
                    if trouble.is_ok() {
                        trouble = source
                            .tile(shape, tile, &mut rows, &mut apart)
                            .map(|rows| interleave(rows, shape.row_bytes as usize, out));
                    }
                }
            })?;
            trouble?;
            let at = u64::from(first) * shape.tile_bytes();
            record(
                gpu,
                commands[0],
                &staging,
                buffer,
                vk::BufferCopy { src_offset: 0, dst_offset: at, size: bytes },
            )?;
            gpu.run(&commands, fence.raw)?;
        }
    }
    Ok(())
}

impl Source<'_> {
    /// The rows of a tile one after the other, fewer at the end of the matrix. The buffers are as large as a tile or grow to
    /// that.
    fn tile<'a>(
        &self,
        shape: Shape,
        tile: u32,
        rows: &'a mut [u8],
        apart: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Fault> {
        let (first, row_bytes) = (tile * TILE, u64::from(shape.row_bytes));
        let count = TILE.min(shape.rows - first);
        let rows = &mut rows[..(u64::from(count) * row_bytes) as usize];
        // Interleaved or not, so many whole groups take so many bytes.
        let at = self.offset + u64::from(first) * row_bytes;
        self.file
            .read_exact_at(rows, at)
            .map_err(|e| fault(FaultCode::Input, format!("cannot read row {first} of the matrix: {e}")))?;
        let Some(block) = self.block else { return Ok(rows) };
        apart.resize(rows.len(), 0);
        take_apart(rows, shape.row_bytes as usize, block as usize, apart);
        Ok(apart)
    }
}

fn record(
    gpu: &Gpu,
    commands: vk::CommandBuffer,
    from: &Buffer,
    to: &Buffer,
    copy: vk::BufferCopy,
) -> Result<(), Fault> {
    let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
    let barrier = [vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
        .dst_access_mask(vk::AccessFlags::SHADER_READ)];
    // SAFETY: the last work of the command buffer was waited for; the buffers live, and the copy lies within both
    // because their sizes were computed from the same shape.
    unsafe {
        gpu.raw.begin_command_buffer(commands, &begin).map_err(gpu.failed("begin a command buffer"))?;
        gpu.raw.cmd_copy_buffer(commands, from.raw, to.raw, &[copy]);
        gpu.raw.cmd_pipeline_barrier(
            commands,
            vk::PipelineStageFlags::TRANSFER,
            vk::PipelineStageFlags::COMPUTE_SHADER,
            vk::DependencyFlags::empty(),
            &barrier,
            &[],
            &[],
        );
        gpu.raw.end_command_buffer(commands).map_err(gpu.failed("end a command buffer"))
    }
}
