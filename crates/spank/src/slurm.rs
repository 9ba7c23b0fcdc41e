//! What passes between Slurm and us: the symbols that it looks for, and the few of its own that we call.
//! All unsafe code is here.

use crate::task::{self, Plan};
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Slurm's handle of a job, which only Slurm looks into.
#[repr(C)]
pub struct Spank {
    _opaque: [u8; 0],
}

/// `struct spank_option`.
#[repr(C)]
struct Opt {
    name: *mut c_char,
    arginfo: *mut c_char,
    usage: *mut c_char,
    has_arg: c_int,
    val: c_int,
    callback: Option<unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

const SUCCESS: c_int = 0;
const FAILURE: c_int = -1;
/// `S_JOB_ARGV` and `S_JOB_ENV` of `enum spank_item`.
const JOB_ARGV: c_int = 9;
const JOB_ENV: c_int = 10;

unsafe extern "C" {
    fn spank_option_register(spank: *mut Spank, option: *mut Opt) -> c_int;
    fn spank_option_getopt(spank: *mut Spank, option: *mut Opt, value: *mut *mut c_char) -> c_int;
    fn spank_get_item(spank: *mut Spank, item: c_int, ...) -> c_int;
    fn spank_remote(spank: *mut Spank) -> c_int;
    fn slurm_error(format: *const c_char, ...);
}

/// A C string that Slurm reads as a symbol.
#[repr(transparent)]
pub struct Text<const N: usize>([u8; N]);

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_name: Text<7> = Text(*b"muninn\0");
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_type: Text<6> = Text(*b"spank\0");
/// Slurm loads plug-ins that were built for its own version only.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: c_uint = task::slurm_version();
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static spank_plugin_version: c_uint = 1;

/// The two options. Slurm keeps the pointers that it is given.
struct Options([Opt; 2]);

// SAFETY: made once and never changed; what it points to are constants.
unsafe impl Send for Options {}
// SAFETY: as for `Send`.
unsafe impl Sync for Options {}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Values are checked where the job is submitted, so that whoever mistypes hears of it at once.
unsafe extern "C" fn check(value: c_int, text: *const c_char, _remote: c_int) -> c_int {
    if text.is_null() {
        return FAILURE;
    }
    // SAFETY: Slurm gives the option's argument, a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let complaint = match value {
        0 => task::check_far(&text).err(),
        _ => task::check_profile(&text).err(),
    };
    match complaint {
        None => SUCCESS,
        Some(why) => {
            complain(&why);
            FAILURE
        }
    }
}

fn complain(text: &str) {
    if let Ok(text) = CString::new(text) {
        // SAFETY: the format takes one C string, and gets one.
        unsafe { slurm_error(c"muninn: %s".as_ptr(), text.as_ptr()) };
    }
}

fn options() -> *mut Opt {
    let options = OPTIONS.get_or_init(|| {
        let option = |name: &'static CStr, what: &'static CStr, usage: &'static CStr, val| Opt {
            name: name.as_ptr().cast_mut(),
            arginfo: what.as_ptr().cast_mut(),
            usage: usage.as_ptr().cast_mut(),
            has_arg: 1,
            val,
            callback: Some(check),
        };
        Options([
            option(
                c"far-memory",
                c"auto|SIZE|none",
                c"how much of the job's memory may lie on other nodes: auto (as much as it bears), a size \
                  such as 2GiB, or none",
                0,
            ),
            option(
                c"far-profile",
                c"NAME",
                c"name under which is kept how the job bears far memory",
                1,
            ),
        ])
    });
    options.0.as_ptr().cast_mut()
}

/// Called in sbatch, srun, slurmd and each task's slurmstepd.
///
/// # Safety
///
/// Slurm calls it, with a handle of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    spank: *mut Spank,
    _count: c_int,
    _arguments: *mut *mut c_char,
) -> c_int {
    let first = options();
    for index in 0..2 {
        // SAFETY: there are two, they live as long as this library, and Slurm only reads them.
        if unsafe { spank_option_register(spank, first.add(index)) } != SUCCESS {
            return FAILURE;
        }
    }
    SUCCESS
}

/// Called in the task's own process, as its user, just before it becomes the program.
///
/// # Safety
///
/// Slurm calls it, with a handle of its own and the words of plugstack.conf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    spank: *mut Spank,
    count: c_int,
    arguments: *mut *mut c_char,
) -> c_int {
    // SAFETY: as promised by Slurm: `count` C strings; options of two; lists that end with null.
    unsafe {
        if spank_remote(spank) != 1 {
            return SUCCESS;
        }
        let Some(far) = value(spank, 0) else {
            return SUCCESS;
        };
        let settings = strings(arguments, usize::try_from(count).unwrap_or(0));
        let (mut argc, mut argv): (c_int, *mut *mut c_char) = (0, null_mut());
        let mut env: *mut *mut c_char = null_mut();
        if spank_get_item(spank, JOB_ARGV, &raw mut argc, &raw mut argv) != SUCCESS
            || spank_get_item(spank, JOB_ENV, &raw mut env) != SUCCESS
        {
            complain("Slurm does not say what the task is to run");
            return FAILURE;
        }
        let command = strings(argv, usize::try_from(argc).unwrap_or(0));
        let environment = strings(env, usize::MAX);
        match task::plan(
            &far,
            value(spank, 1).as_deref(),
            &settings,
            command,
            environment,
        ) {
            Ok(None) => SUCCESS,
            Ok(Some(plan)) => {
                complain(&turn_into(&plan));
                FAILURE
            }
            Err(why) => {
                complain(&why);
                FAILURE
            }
        }
    }
}

/// What the user said for an option; `None` if nothing.
///
/// # Safety
///
/// The handle is Slurm's, and the number 0 or 1.
unsafe fn value(spank: *mut Spank, index: usize) -> Option<String> {
    let mut text: *mut c_char = null_mut();
    // SAFETY: an option of ours, and room for one pointer.
    let said = unsafe { spank_option_getopt(spank, options().add(index), &raw mut text) };
    if said != SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: Slurm gives a C string.
    Some(
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    )
}

/// Copies of C strings, until null or `max`.
///
/// # Safety
///
/// The list holds `max` pointers, or ends with null before.
unsafe fn strings(list: *mut *mut c_char, max: usize) -> Vec<CString> {
    let mut strings = Vec::new();
    if list.is_null() {
        return strings;
    }
    while strings.len() < max {
        // SAFETY: within the list, whose end was not seen yet.
        let text = unsafe { *list.add(strings.len()) };
        if text.is_null() {
            break;
        }
        // SAFETY: what the list points to are C strings.
        strings.push(unsafe { CStr::from_ptr(text) }.to_owned());
    }
    strings
}

/// Becomes another program. Comes back only to say why not.
fn turn_into(plan: &Plan) -> String {
    let pointers = |list: &[CString]| {
        let list = list.iter().map(|text| text.as_ptr());
        list.chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (words, variables) = (pointers(&plan.command), pointers(&plan.environment));
    // SAFETY: both lists end with null and point to strings that live as long as `plan`.
    unsafe { libc::execve(plan.program.as_ptr(), words.as_ptr(), variables.as_ptr()) };
    let error = std::io::Error::last_os_error();
    format!("cannot run {}: {error}", plan.program.to_string_lossy())
}
