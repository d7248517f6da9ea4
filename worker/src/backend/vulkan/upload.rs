//! Rows from the model file to the device: read, interleaved, copied, a few megabytes at a time.
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use ash::vk;
use twinband_protocol::{Fault, FaultCode, TILE};

use super::device::Gpu;
use super::fault::fault;
use super::heap::Buffer;
use super::layout::{Chunk, Shape, interleave};
use super::memory::Use;

/// Bytes of the staging buffer. One tile always fits: the longest rows make one of this size.
const STAGING: u64 = 16 << 20;

/// Fills the chunks' buffers with the rows that begin at `offset` of the file.
pub(super) fn upload(
    gpu: &Rc<Gpu>,
    shape: Shape,
    chunks: &[(Chunk, Buffer)],
    file: &File,
    offset: u64,
) -> Result<(), Fault> {
    let per_fill = u32::try_from(STAGING / shape.tile_bytes()).unwrap_or(u32::MAX).max(1);
    let most = chunks.iter().map(|(c, _)| c.tiles).max().unwrap_or(0).min(per_fill);
    let size = u64::from(most) * shape.tile_bytes();
    let mut staging = Buffer::new(gpu, "staging", size, vk::BufferUsageFlags::TRANSFER_SRC, Use::Staging)?;
    let (_pool, commands) = gpu.commands(1)?;
    let fence = gpu.fence()?;
    let mut rows = vec![0; (u64::from(TILE) * u64::from(shape.row_bytes)) as usize];
    for (chunk, buffer) in chunks {
        for first in (0..chunk.tiles).step_by(per_fill as usize) {
            let tiles = per_fill.min(chunk.tiles - first);
            let bytes = u64::from(tiles) * shape.tile_bytes();
            let mut trouble = Ok(());
            staging.fill(bytes, |staging| {
                let outs = staging.chunks_exact_mut(shape.tile_bytes() as usize);
                for (tile, out) in (chunk.first_tile + first..).zip(outs) {
                    if trouble.is_ok() {
                        trouble = read_tile(file, offset, shape, tile, &mut rows)
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

/// The rows of a tile, fewer at the end of the matrix.
fn read_tile<'a>(
    file: &File,
    offset: u64,
    shape: Shape,
    tile: u32,
    rows: &'a mut [u8],
) -> Result<&'a [u8], Fault> {
    let first = tile * TILE;
    let count = TILE.min(shape.rows - first);
    let rows = &mut rows[..(u64::from(count) * u64::from(shape.row_bytes)) as usize];
    let at = offset + u64::from(first) * u64::from(shape.row_bytes);
    file.read_exact_at(rows, at)
        .map_err(|e| fault(FaultCode::Input, format!("cannot read row {first} of the matrix: {e}")))?;
    Ok(rows)
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
