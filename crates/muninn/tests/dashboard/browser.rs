//! In a browser: it loads, it lives, it drains by a click, it is small and needs no mouse.

use crate::board::{Board, job};
use crate::chromium::Browser;
use crate::common::{far_memory_possible, place};
use muninn_types::Bytes;
use rustix::process::Signal;
use serde_json::Value;

/// What a program or a server may be called.
const EVIL: &str = "<img src=x onerror=document.title='owned'>";

#[test]
fn it_loads_updates_live_and_drains_by_a_click() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let place = place();
    let raven = place.serve(&["--memory", "256MiB", "--name", "raven"]);
    let evil = &[
        "serve",
        "--socket",
        "evil.sock",
        "--memory",
        "16MiB",
        "--json",
        "--name",
        EVIL,
    ];
    let evil = crate::common::Served::start(place.command(evil));
    let client = raven.client(EVIL);
    let _first = client.grant(Bytes::mib(8)).unwrap();
    let pool = format!("{},{}", raven.unix(), evil.unix());
    let board = Board::start(&place, &["--pool", &pool, "--every", "200ms"]);
    browser.go(board.url());
    browser.until("Number(document.documentElement.dataset.updates) >= 1");
    // The token stays out of the address, and so out of history and bookmarks.
    assert_eq!(browser.value("location.hash"), "");
    browser.until("document.querySelectorAll('.server').length === 2");
    browser.until("document.querySelector('#sum-granted').textContent === '8.00MiB of 272MiB'");
    // What is not in sight is not laid out, but it is there.
    let text = browser.value("document.querySelector('#servers').textContent");
    let text = text.as_str().unwrap();
    assert!(text.contains("raven") && text.contains(EVIL), "{text}");
    // A name is text, whatever it looks like.
    assert_eq!(browser.value("document.images.length"), 0);
    assert_eq!(browser.value("document.title"), "Muninn");

    // Live: nobody reloads anything.
    let _second = client.grant(Bytes::mib(16)).unwrap();
    browser.until("document.querySelector('#sum-granted').textContent === '24.0MiB of 272MiB'");
    // What was asked of the server is in the heat map by now: the grants.
    browser.until("document.querySelector('#percentile-rows')?.textContent.includes('control')");

    browser.click(".server:nth-child(2) button");
    browser.until("document.querySelector('#ask').open");
    assert_eq!(browser.text("#ask-title"), "Drain raven?");
    // An accident is a no.
    browser.press("Enter");
    browser.until("!document.querySelector('#ask').open");
    browser.click(".server:nth-child(2) button");
    browser.until("document.querySelector('#ask').open");
    browser.click("#ask-yes");
    browser.until("document.querySelector('.server:nth-child(2)').textContent.includes('drains')");
    browser.until("document.querySelector('#said').textContent.includes('drains: its clients')");
    let status = place.run(&["status", "--json", "--pool", &raven.unix()]);
    let status: Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!(status["servers"][0]["draining"], true);
    browser.until(
        "document.querySelector('.server:nth-child(2) button').textContent === 'end the drain'",
    );
    browser.click(".server:nth-child(2) button");
    browser.until("document.querySelector('#ask').open");
    browser.click("#ask-yes");
    browser.until("document.querySelector('.server:nth-child(2) button').textContent === 'drain'");

    // A server dies while somebody looks: its card says so, and the other goes on.
    evil.running.signal(Signal::KILL);
    browser.until("document.querySelectorAll('.server.silent').length === 1");
    browser.until("document.querySelector('#sum-servers').textContent === '2, 1 silent'");
    let _third = client.grant(Bytes::mib(1)).unwrap();
    browser.until("document.querySelector('#sum-granted').textContent === '25.0MiB of 256MiB'");
    assert_eq!(browser.complaints, Vec::<String>::new());

    // The dashboard goes: the page says so, and lives again when one is back at its place.
    let listen = board.at().to_string();
    let token = place.write("token", board.token());
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(board.served.stop().code, Some(0));
    browser.until("document.body.classList.contains('stale')");
    let again = [
        "dashboard",
        "--listen",
        &listen,
        "--token-file",
        "token",
        "--json",
        "--pool",
        &pool,
    ];
    let again = crate::common::Served::start(place.command(&again));
    assert_eq!(again.listening["token"], Value::Null);
    browser.until("document.querySelector('#link').textContent === 'live'");
    browser.until("document.querySelector('#sum-granted').textContent === '25.0MiB of 256MiB'");
}

#[test]
fn it_is_usable_at_400_pixels_and_by_keyboard() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let long = "a-name-of-a-server-that-is-as-long-as-names-may-be-".to_string() + "0123456789";
    let raven = place.serve(&["--memory", "256MiB", "--name", &long]);
    let _client = raven.client("holder").grant(Bytes::mib(8)).unwrap();
    let _job = job(&place, &[]);
    let board = Board::start(&place, &["--pool", &raven.tcp(), "--every", "200ms"]);
    browser.size(400, 800);
    browser.go(board.url());
    browser.until("document.querySelector('#jobs-rows button')?.textContent === 'sleep'");
    let fits = "document.documentElement.scrollWidth <= 400 && innerWidth === 400";
    browser.until(fits);

    // No mouse from here on.
    browser.tab_to("#jobs-rows button");
    browser.press("Enter");
    browser.until("!document.querySelector('#life').hidden");
    browser.until("document.querySelectorAll('#life-memory path').length >= 3");
    browser.until(fits);
    browser.tab_to("#life-buttons button");
    browser.press("Enter");
    browser.until("document.querySelector('#ask').open && document.activeElement.id === 'size'");
    browser.until(fits);
    browser.type_text("128MiB");
    browser.press("Enter");
    browser
        .until("document.querySelector('#said').textContent.includes('the limit is 128MiB now')");
    browser.until("document.querySelector('#jobs-rows').textContent.includes('128MiB')");
    // The moment at which it changed is in the picture of its life.
    browser.until("document.querySelectorAll('#life-memory .change').length === 1");
    let jobs = place.run(&["status", "--jobs", "--json"]);
    let jobs: Value = serde_json::from_str(&jobs.out).unwrap();
    assert_eq!(jobs["jobs"][0]["limit_bytes"], 128 << 20);
    // Nonsense is answered, and changes nothing.
    browser.press("Escape");
    browser.until("document.querySelector('#life').hidden");
    browser.press("/");
    browser.until("document.activeElement.id === 'filter'");
    browser.type_text("nothing is called so");
    browser.until("document.querySelectorAll('#jobs-rows tr').length === 0");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Of a large rack. Times are printed; a slow machine is no failure.
#[test]
fn a_large_rack_is_shown_quickly() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let place = place();
    let board = Board::start(&place, &[]);
    browser.go(board.url());
    browser.until("Number(document.documentElement.dataset.updates) >= 1");
    let paint = "performance.getEntriesByName('first-contentful-paint')[0]";
    browser.until(paint);
    let paint_ms = browser.value(&format!("{paint}.startTime"));
    let update = browser.value(
        "(() => { clearTimeout(state.timer); state.asking = true; \
         const fake = (n) => ({ mark: 'x.' + n, full: n === 0, every_ms: 1000, may_act: true, classes: state.classes, \
           gone_servers: [], gone_jobs: [], done: [], \
           heat: [{ unix_s: 100 + n, classes: state.classes.map((_, i) => [i, [3, 5 + n, 7, 2]]) }], \
           servers: Array.from({length: 100}, (_, i) => ({ address: '10.0.0.' + i + ':7000', name: 'rack-' + i, \
             error: null, pool: 2 ** 36, granted: 2 ** 35 + n * 4096, wiping: 0, sessions: 30, drain_ms: null, requests: n, \
             bytes_in: 1e6 + n, bytes_out: 2e6, others: 2 ** 20, \
             holders: Array.from({length: 24}, (_, k) => ['program' + k + ' (' + (i * 24 + k) + ')', 2 ** 30 + n])})), \
           jobs: Array.from({length: 1000}, (_, i) => ({ pid: 1000 + i, name: 'job' + i, layout: 'mirror', limit: 2 ** 30, \
             here: 2 ** 29 + n * i, far: (i * 7919 + n * 104729) % (2 ** 31), processes: 1, faults: i + n, from_far: i, \
             waiting: 0.1, bytes_in: 1e6, bytes_out: 1e6, notes: [] })) }); \
         const times = []; \
         for (let n = 0; n < 11; n++) { const began = performance.now(); apply(fake(n)); document.body.offsetHeight; \
           times.push(performance.now() - began); } \
         const first = times.shift(); times.sort((a, b) => a - b); \
         return { first, least: times[0], median: times[5], most: times[9], rows: document.querySelectorAll('#jobs-rows tr').length, \
           nodes: document.querySelectorAll('*').length }; })()",
    );
    println!("first paint after {paint_ms} ms; 100 servers and 1000 jobs: {update}");
    assert_eq!(
        update["rows"], 100,
        "the rest is there when it is asked for"
    );
    // The fastest of ten: a machine may be busy, but not every time. Five times what is promised of a quiet one.
    assert!(update["least"].as_f64().unwrap() < 250.0, "{update}");
    assert!(paint_ms.as_f64().unwrap() < 30_000.0, "{paint_ms}");
    // Left open for long: what is not there any more is not kept.
    let kept = browser.value(
        "(() => { for (let n = 0; n < 500; n++) { apply({ mark: 'y.' + n, full: false, every_ms: 1000, may_act: true, \
           classes: state.classes, gone_servers: [], gone_jobs: [...state.jobs.keys()].slice(0, 10), done: [], \
           heat: [{ unix_s: n, classes: [] }], servers: [], \
           jobs: Array.from({length: 10}, (_, i) => ({ pid: 10000 + n * 10 + i, name: 'j', layout: 'single', limit: 1, here: 1, \
             far: 1, processes: 1, faults: 1, from_far: 1, waiting: 0, bytes_in: 0, bytes_out: 0, notes: [] })) }); } \
         return [state.jobs.size, state.rows.size, state.heat.length, document.querySelectorAll('*').length]; })()",
    );
    assert_eq!(
        (&kept[0], &kept[1], &kept[2]),
        (&1000.into(), &100.into(), &120.into())
    );
    let (before, after) = (update["nodes"].as_u64().unwrap(), kept[3].as_u64().unwrap());
    assert!(after <= before + 50, "{before} elements became {after}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
