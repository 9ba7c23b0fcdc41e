//! Reading a module: what it is made of is checked and translated before any of it can be called.
//!
//! Functions are exports whose name says what they are: `list.walk@1`, or `list.walk@1 idempotent`. They
//! take the length of their arguments and give back how they ended. All of a hostile module's costs are
//! bounded by its length, which is checked first; the rest of the bounds are here and in [`super::instance`].

use super::instance::{self, Instance};
use muninn_wire::{MAX_MODULE, MAX_WIC_NAME, ModuleHash};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use wasmi::{CompilationMode, Config, EnforcedLimits, Engine, ExternType};

/// Things imported and exported at most; there are eleven of the former.
const IMPORTS_MAX: usize = 32;
const EXPORTS_MAX: usize = 256;
/// Functions that can be called at most.
const FUNCTIONS_MAX: usize = 64;
/// Calls within calls.
const RECURSION_MAX: usize = 256;
/// Bytes of values that those have under way.
const STACK_MAX: usize = 256 << 10;
const STACK_MIN: usize = 4 << 10;
/// Stacks kept for the next calls of a module.
const STACKS_KEPT: usize = 16;

/// Why bytes are no module that can be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    #[error("a module has 1 to {MAX_MODULE} bytes, and this one has {0}")]
    Length(usize),
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("it imports '{0}', and may import functions of 'muninn' only, as docs/WIC.md has them")]
    Import(String),
    #[error("it imports or exports more than it may ({0})")]
    TooMany(usize),
    #[error("it exports no memory of the name 'memory'")]
    NoMemory,
    #[error("it exports no function; name one like 'list.walk@1' or 'list.walk@1 idempotent'")]
    NoFunction,
    #[error(
        "'{0}' is no name of a function: use one like 'list.walk@1' or 'list.walk@1 idempotent'"
    )]
    Name(String),
    #[error("'{0}' is there twice")]
    Twice(String),
    #[error("'{0}' does not take one i32 and give back one i64")]
    Type(String),
    #[error("it cannot be started: {0}")]
    Start(String),
}

/// A function that a module exports.
#[derive(Debug)]
pub struct Exported {
    /// As it is exported.
    pub(super) export: String,
    pub name: String,
    pub version: u32,
    pub idempotent: bool,
    pub(crate) calls: AtomicU64,
}

impl Exported {
    /// None: it is not meant to be one.
    fn of(export: &str) -> Option<Result<Exported, ModuleError>> {
        let (name, rest) = export.split_once('@')?;
        let (version, option) = rest.split_once(' ').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let good = !name.is_empty()
            && name.len() <= MAX_WIC_NAME
            && name.chars().all(plain)
            && ["", "idempotent"].contains(&option);
        let exported = version
            .parse()
            .ok()
            .filter(|_| good)
            .map(|version| Exported {
                export: export.to_string(),
                name: name.to_string(),
                version,
                idempotent: option == "idempotent",
                calls: AtomicU64::new(0),
            });
        Some(exported.ok_or_else(|| ModuleError::Name(export.chars().take(64).collect())))
    }
}

/// A module that can be run.
pub struct Module {
    hash: ModuleHash,
    bytes: Vec<u8>,
    pub(super) code: wasmi::Module,
    pub(super) engine: Engine,
    functions: Vec<Exported>,
    locks: bool,
    /// Tells instances of different modules apart.
    pub(super) serial: u64,
    /// The memory of a fresh instance, as far as it is restored after a call.
    pub(super) image: OnceLock<Box<[u8]>>,
    removed: AtomicBool,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({} functions)", self.functions.len())
    }
}

/// The name of a module: the SHA-256 of its bytes.
pub fn hash_of(bytes: &[u8]) -> ModuleHash {
    Sha256::digest(bytes).into()
}

fn config() -> Config {
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict())
        .allow_start_fn(false)
        .ignore_custom_sections(true)
        .wasm_multi_memory(false)
        .set_max_recursion_depth(RECURSION_MAX)
        .set_max_stack_height(STACK_MAX)
        .set_min_stack_height(STACK_MIN)
        .set_max_cached_stacks(STACKS_KEPT);
    config
}

impl Module {
    /// Checks and translates it. Takes milliseconds where a module is long: not for an event loop.
    pub fn load(bytes: Vec<u8>) -> Result<Module, ModuleError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        if bytes.is_empty() || bytes.len() > MAX_MODULE {
            return Err(ModuleError::Length(bytes.len()));
        }
        // One for each module: what it takes is given back with it.
        let engine = Engine::new(&config());
        // Over several lines, some of them.
        let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let unreadable = |error: wasmi::Error| ModuleError::Unreadable(words(error.to_string()));
        let code = wasmi::Module::new(&engine, &bytes).map_err(unreadable)?;
        if code.imports().count() > IMPORTS_MAX {
            return Err(ModuleError::TooMany(IMPORTS_MAX));
        }
        for import in code.imports() {
            let is_function = matches!(import.ty(), ExternType::Func(_));
            if import.module() != "muninn" || !is_function {
                let name = format!("{}.{}", import.module(), import.name());
                return Err(ModuleError::Import(name.chars().take(64).collect()));
            }
        }
        let functions = functions_of(&code)?;
        let locks = code.imports().any(|import| import.name() == "lock");
        let module = Module {
            hash: hash_of(&bytes),
            bytes,
            code,
            engine,
            functions,
            locks,
            serial: SERIAL.fetch_add(1, Relaxed),
            image: OnceLock::new(),
            removed: AtomicBool::new(false),
        };
        // Whether it can be begun shows now, and not at the first call.
        Instance::new(&module)?;
        Ok(module)
    }

    pub fn hash(&self) -> &ModuleHash {
        &self.hash
    }
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Whether any of it can take a lock.
    pub fn locks(&self) -> bool {
        self.locks
    }
    pub fn functions(&self) -> &[Exported] {
        &self.functions
    }

    /// Its instances are let go as soon as their threads look.
    pub(crate) fn remove(&self) {
        self.removed.store(true, Relaxed);
        instance::look_again();
    }
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }
}

fn functions_of(code: &wasmi::Module) -> Result<Vec<Exported>, ModuleError> {
    let mut functions: Vec<Exported> = Vec::new();
    if code.exports().count() > EXPORTS_MAX {
        return Err(ModuleError::TooMany(EXPORTS_MAX));
    }
    for export in code.exports() {
        let ExternType::Func(ty) = export.ty() else {
            continue;
        };
        let Some(exported) = Exported::of(export.name()) else {
            continue;
        };
        let exported = exported?;
        let typed = ty.params() == [wasmi::ValType::I32] && ty.results() == [wasmi::ValType::I64];
        if !typed {
            return Err(ModuleError::Type(exported.export));
        }
        let same = |f: &Exported| f.name == exported.name && f.version == exported.version;
        if functions.iter().any(same) {
            return Err(ModuleError::Twice(exported.export));
        }
        functions.push(exported);
    }
    if functions.len() > FUNCTIONS_MAX {
        return Err(ModuleError::TooMany(FUNCTIONS_MAX));
    }
    if functions.is_empty() {
        return Err(ModuleError::NoFunction);
    }
    match code.get_export("memory") {
        Some(ExternType::Memory(_)) => Ok(functions),
        _ => Err(ModuleError::NoMemory),
    }
}
