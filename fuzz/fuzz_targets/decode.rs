//! Any bytes are a message or are refused; what is a message encodes to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muninn_wire::*;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return;
    };
    if let Ok(header) = Header::decode(head) {
        let _ = Header::verify(head, body);
        if let Ok(request) = Request::decode(&header, body) {
            let mut frame = Vec::new();
            request.encode(header.class, header.tag, &mut frame);
            assert_eq!(
                &frame[HEADER_LEN..],
                body,
                "another body for the same request"
            );
        }
    }
    let _ = (
        Hello::decode(body),
        Challenge::decode(body),
        Welcome::decode(body),
    );
    let _ = (
        GrantInfo::decode(body),
        decode_adopted(body),
        decode_old_value(body),
    );
    let _ = (ServiceInfo::decode(body), Called::decode(body));
    let _ = (
        Notice::decode(body),
        DrainReport::decode(3, body),
        DrainReport::decode(4, body),
        StatusPage::decode(4, body),
        StatusPage::decode(5, body),
    );
    let _ = Estate::decode(bytes);
    let _ = (Segs::decode(body), GrantList::decode(body));
    for &code in ErrorCode::ALL {
        if let Ok(refusal) = Refusal::decode(code, body) {
            let _ = refusal.to_string();
        }
    }
});
