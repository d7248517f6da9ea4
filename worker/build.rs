//! Compiles the shaders if the feature `compile-shaders` asks for it; otherwise the committed SPIR-V is embedded.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "compile-shaders")]
    compile::all()?;
    Ok(())
}

#[cfg(feature = "compile-shaders")]
mod compile {
    use std::error::Error;
    use std::ffi::OsStr;
    use std::fs;
    use std::path::{Path, PathBuf};

    use shaderc::{
        CompileOptions, Compiler, EnvVersion, OptimizationLevel, ResolvedInclude, ShaderKind, TargetEnv,
    };

    /// `shaders/NAME.comp` to `OUT_DIR/NAME.spv`, with the options that the committed files were compiled with.
    pub fn all() -> Result<(), Box<dyn Error>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
        let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
        println!("cargo::rerun-if-changed={}", folder.display());
        let compiler = Compiler::new()?;
        let mut options = CompileOptions::new()?;
        options.set_target_env(TargetEnv::Vulkan, EnvVersion::Vulkan1_0 as u32);
        options.set_optimization_level(OptimizationLevel::Performance);
        options.set_warnings_as_errors();
        let includes = folder.clone();
        options.set_include_callback(move |name, _, _, _| {
            let path = includes.join(name);
            let content = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            Ok(ResolvedInclude { resolved_name: path.display().to_string(), content })
        });
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let Some(stem) = path.file_stem().filter(|_| path.extension() == Some(OsStr::new("comp"))) else {
                continue;
            };
            let source = fs::read_to_string(&path)?;
            let name = path.display().to_string();
            let spirv =
                compiler.compile_into_spirv(&source, ShaderKind::Compute, &name, "main", Some(&options))?;
            fs::write(out.join(stem).with_extension("spv"), spirv.as_binary_u8())?;
        }
        Ok(())
    }
}
