//! Buffers with memory behind them.
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::rc::Rc;

use ash::vk;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};
use twinband_protocol::{Fault, FaultCode};

use super::device::Gpu;
use super::memory::{self, Use};

/// A buffer bound to its memory; mapped if the CPU can reach it.
pub(super) struct Buffer {
    gpu: Rc<Gpu>,
    pub raw: vk::Buffer,
    /// `None` only until it is allocated and while it is freed.
    allocation: Option<Allocation>,
    flags: vk::MemoryPropertyFlags,
    size: u64,
}

impl Buffer {
    /// A buffer of `size` bytes. Its contents are undefined.
    pub fn new(
        gpu: &Rc<Gpu>,
        name: &str,
        size: u64,
        how: vk::BufferUsageFlags,
        what: Use,
    ) -> Result<Self, Fault> {
        let size = size.max(4).next_multiple_of(4);
        let info =
            vk::BufferCreateInfo::default().size(size).usage(how).sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: the device lives.
        let raw = unsafe { gpu.raw.create_buffer(&info, None) }.map_err(gpu.failed("create a buffer"))?;
        let flags = vk::MemoryPropertyFlags::empty();
        let mut buffer = Self { gpu: gpu.clone(), raw, allocation: None, flags, size };
        buffer.allocate(name, what)?;
        Ok(buffer)
    }

    /// Takes memory of the best type that has room.
    fn allocate(&mut self, name: &str, what: Use) -> Result<(), Fault> {
        let gpu = self.gpu.clone();
        // SAFETY: the buffer was just made.
        let mut requirements = unsafe { gpu.raw.get_buffer_memory_requirements(self.raw) };
        if requirements.size < self.size || !requirements.alignment.is_power_of_two() {
            return Err(gpu.broken(FaultCode::Driver, "the driver's requirements for a buffer make no sense"));
        }
        if what != Use::Weights {
            // Flushing rounds out to whole atoms: they must not be shared with another buffer.
            let atom = self.atom();
            requirements.alignment = requirements.alignment.max(atom);
            requirements.size = requirements.size.div_ceil(atom).saturating_mul(atom);
        }
        let types = memory::order(&gpu.memory, requirements.memory_type_bits, what);
        let mut refusal = "no memory type fits".to_owned();
        for index in types {
            let request = AllocationCreateDesc {
                name,
                // Exactly this type: the choice was made above.
                requirements: vk::MemoryRequirements { memory_type_bits: 1 << index, ..requirements },
                location: MemoryLocation::Unknown,
                linear: true,
                allocation_scheme: AllocationScheme::GpuAllocatorManaged,
            };
            let allocation = gpu.allocator.borrow_mut().as_mut().map(|a| a.allocate(&request));
            match allocation {
                Some(Ok(allocation)) => {
                    self.flags = gpu.memory.get(index as usize).copied().unwrap_or_default();
                    let visible = self.flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
                    if visible && allocation.mapped_ptr().is_none() {
                        return Err(gpu.broken(FaultCode::Driver, "the driver mapped nothing"));
                    }
                    // SAFETY: the memory is as large and aligned as required, of an allowed type, and used by no other
                    // buffer; it is freed after the buffer.
                    unsafe { gpu.raw.bind_buffer_memory(self.raw, allocation.memory(), allocation.offset()) }
                        .map_err(gpu.failed("bind memory"))?;
                    self.allocation = Some(allocation);
                    return Ok(());
                }
                Some(Err(error)) => refusal = error.to_string(),
                None => {}
            }
        }
        let text = format!("the device has no {} bytes for {name}: {refusal}", self.size);
        Err(gpu.broken(FaultCode::Memory, text))
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it lies in the device's own memory.
    pub fn is_local(&self) -> bool {
        self.flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
    }

    fn atom(&self) -> u64 {
        let atom = self.gpu.found.limits.non_coherent_atom_size;
        if atom.is_power_of_two() { atom } else { 256 }
    }

    /// Lets `fill` write the first `size` bytes. No work that uses the buffer may be under way.
    pub fn fill(&mut self, size: u64, fill: impl FnOnce(&mut [u8])) -> Result<(), Fault> {
        let mapped = self.allocation.as_mut().and_then(Allocation::mapped_slice_mut);
        let bytes = usize::try_from(size).ok().zip(mapped).and_then(|(size, m)| m.get_mut(..size));
        let Some(bytes) = bytes else { return Err(self.unreachable()) };
        fill(bytes);
        self.synchronise(size, true)
    }

    /// Copies its first bytes. No work that writes the buffer may be under way.
    pub fn read<R>(&self, size: u64, read: impl FnOnce(&[u8]) -> R) -> Result<R, Fault> {
        self.synchronise(size, false)?;
        let mapped = self.allocation.as_ref().and_then(Allocation::mapped_slice);
        let bytes = usize::try_from(size).ok().zip(mapped).and_then(|(size, m)| m.get(..size));
        bytes.map(read).ok_or_else(|| self.unreachable())
    }

    fn unreachable(&self) -> Fault {
        self.gpu.broken(FaultCode::Driver, "memory that should be mapped is not")
    }

    /// Makes the CPU's writes visible to the device, or the other way round, where that does not happen by itself.
    fn synchronise(&self, size: u64, written: bool) -> Result<(), Fault> {
        let Some(allocation) = &self.allocation else { return Err(self.unreachable()) };
        if self.flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT) {
            return Ok(());
        }
        let end = allocation.offset() + allocation.size();
        let (from, length) = memory::whole_atoms(allocation.offset(), size, self.atom(), end);
        // SAFETY: names the memory without using it.
        let memory = unsafe { allocation.memory() };
        let range = [vk::MappedMemoryRange::default().memory(memory).offset(from).size(length)];
        // SAFETY: the range is mapped and made of whole atoms of this buffer's own allocation.
        let result = unsafe {
            if written {
                self.gpu.raw.flush_mapped_memory_ranges(&range)
            } else {
                self.gpu.raw.invalidate_mapped_memory_ranges(&range)
            }
        };
        result.map_err(self.gpu.failed("make memory visible"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.gpu.is_dead() {
            return;
        }
        // SAFETY: whoever drops a buffer has waited for the work that uses it.
        unsafe { self.gpu.raw.destroy_buffer(self.raw, None) };
        if let (Some(allocation), Some(allocator)) =
            (self.allocation.take(), self.gpu.allocator.borrow_mut().as_mut())
        {
            // It cannot fail for an allocation of this allocator, and there is nothing to do if it does.
            let _ = allocator.free(allocation);
        }
    }
}
