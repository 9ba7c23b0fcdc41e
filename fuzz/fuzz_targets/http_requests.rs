//! Any bytes are a request, the beginning of one, or are refused; a request is the same however it arrives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muninn_http::Request;

fuzz_target!(|bytes: &[u8]| {
    let (head, body) = (512, 64);
    let Ok(Some(request)) = Request::read(bytes, head, body) else {
        return;
    };
    assert!(request.path.starts_with('/') && request.body.len() <= body);
    let _ = (request.field("host"), request.asked("since"));
    // What comes behind it changes nothing, and of less of it there is no other request.
    let mut more = bytes.to_vec();
    more.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    let again = Request::read(&more, head, body).unwrap().unwrap();
    assert_eq!(
        (again.path, again.query, again.body),
        (request.path, request.query, request.body)
    );
    for cut in 0..bytes.len() {
        if let Ok(Some(part)) = Request::read(&bytes[..cut], head, body) {
            assert_eq!((part.path, part.body), (request.path, request.body));
        }
    }
});
