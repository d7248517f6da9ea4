//! Shaders made ready to run.
#![allow(unsafe_code, reason = "calls Vulkan")]

use std::io::Cursor;
use std::path::PathBuf;
use std::rc::Rc;

use ash::vk;
use twinband_protocol::{Fault, FaultCode};

use super::cache;
use super::device::{Gpu, Owned};
use super::format::Format;

/// Bytes of the push constants, see `shaders/common.glsl`.
pub(super) const PUSH_BYTES: u32 = 24;

/// Storage buffers of a shader: weights, codes, meta, results.
pub(super) const BINDINGS: u32 = 4;

/// The pipelines of a device, one a format, made when they are first needed.
pub(super) struct Pipelines {
    gpu: Rc<Gpu>,
    cache: Option<(Owned<vk::PipelineCache>, PathBuf)>,
    pub bindings: Owned<vk::DescriptorSetLayout>,
    pub layout: Owned<vk::PipelineLayout>,
    made: Vec<(u32, Rc<Owned<vk::Pipeline>>)>,
}

impl Pipelines {
    /// `folder` is where compiled pipelines are kept, if anywhere.
    pub fn new(gpu: &Rc<Gpu>, folder: Option<&str>) -> Result<Self, Fault> {
        let bindings: Vec<_> = (0..BINDINGS)
            .map(|i| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(i)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the device lives; `info` and what it points to live until the call returns.
        let bindings = unsafe { gpu.raw.create_descriptor_set_layout(&info, None) }
            .map_err(gpu.failed("create a descriptor layout"))?;
        let bindings = gpu.own(bindings, |device, layout| {
            // SAFETY: dropped after what was made with it, or not needed by it any more.
            unsafe { device.destroy_descriptor_set_layout(layout, None) }
        });
        let sets = [bindings.raw];
        let push =
            [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(PUSH_BYTES)];
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&push);
        // SAFETY: as above.
        let layout = unsafe { gpu.raw.create_pipeline_layout(&info, None) }
            .map_err(gpu.failed("create a pipeline layout"))?;
        let layout = gpu.own(layout, |device, layout| {
            // SAFETY: as above.
            unsafe { device.destroy_pipeline_layout(layout, None) }
        });
        let cache = folder.and_then(|folder| open_cache(gpu, folder));
        Ok(Self { gpu: gpu.clone(), cache, bindings, layout, made: Vec::new() })
    }

    /// The pipeline of a format.
    pub fn get(&mut self, format: &Format) -> Result<Rc<Owned<vk::Pipeline>>, Fault> {
        if let Some((_, pipeline)) = self.made.iter().find(|(code, _)| *code == format.code) {
            return Ok(pipeline.clone());
        }
        let pipeline = Rc::new(self.make(format)?);
        self.made.push((format.code, pipeline.clone()));
        self.save();
        Ok(pipeline)
    }

    fn make(&self, format: &Format) -> Result<Owned<vk::Pipeline>, Fault> {
        let gpu = &self.gpu;
        let code = ash::util::read_spv(&mut Cursor::new(format.spirv))
            .map_err(|e| gpu.broken(FaultCode::Driver, format!("the shader of {}: {e}", format.name)))?;
        let info = vk::ShaderModuleCreateInfo::default().code(&code);
        // SAFETY: the code is one of ours, valid SPIR-V (tests run the validator over it).
        let module =
            unsafe { gpu.raw.create_shader_module(&info, None) }.map_err(gpu.failed("take a shader"))?;
        let module = gpu.own(module, |device, module| {
            // SAFETY: not needed by pipelines once they are made.
            unsafe { device.destroy_shader_module(module, None) }
        });
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module.raw)
            .name(c"main");
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout.raw)];
        let cache = self.cache.as_ref().map_or(vk::PipelineCache::null(), |(cache, _)| cache.raw);
        // SAFETY: module, layout and cache live; the shader's interface is the layout's.
        let made = unsafe { gpu.raw.create_compute_pipelines(cache, &info, None) };
        let made = made.map_err(|(_, e)| gpu.failed("compile a shader")(e))?;
        let null = || gpu.broken(FaultCode::Driver, "the driver compiled a shader to nothing");
        let pipeline = made.first().copied().filter(|p| *p != vk::Pipeline::null()).ok_or_else(null)?;
        Ok(gpu.own(pipeline, |device, pipeline| {
            // SAFETY: whoever drops a pipeline has waited for the work that uses it.
            unsafe { device.destroy_pipeline(pipeline, None) }
        }))
    }

    fn save(&self) {
        let Some((cache, path)) = &self.cache else { return };
        // SAFETY: the cache lives.
        if let Ok(data) = unsafe { self.gpu.raw.get_pipeline_cache_data(cache.raw) }
            && !data.is_empty()
        {
            cache::write(path, &data);
        }
    }
}

/// A cache with what is on disk; without that if the driver does not want it; or none at all.
fn open_cache(gpu: &Rc<Gpu>, folder: &str) -> Option<(Owned<vk::PipelineCache>, PathBuf)> {
    let found = &gpu.found;
    let path = cache::path(folder, &found.cache_uuid, &found.device.driver, found.device.driver_version);
    let create = |data: &[u8]| {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the device lives; the data is what a driver of this version and device once wrote.
        unsafe { gpu.raw.create_pipeline_cache(&info, None) }
    };
    let cache = create(&cache::read(&path).unwrap_or_default()).or_else(|_| create(&[])).ok()?;
    let cache = gpu.own(cache, |device, cache| {
        // SAFETY: not needed by pipelines once they are made.
        unsafe { device.destroy_pipeline_cache(cache, None) }
    });
    Some((cache, path))
}
