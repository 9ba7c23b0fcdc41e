//! What is answered to which request.

use super::board::Board;
use super::guard::{Guard, Right};
use muninn_http::{Method, Request, Response, Site};
use muninn_types::Bytes;
use serde::Deserialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/dashboard.css");
const FORMAT: &str = include_str!("page/format.js");
const CHARTS: &str = include_str!("page/charts.js");
const SCRIPT: &str = include_str!("page/dashboard.js");
const ICON: &str = include_str!("page/icon.svg");

/// Nothing is loaded from elsewhere, nothing in the page is run but its own files, nobody puts it into a frame.
const POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\n\
                      Cross-Origin-Opener-Policy: same-origin\r\n";

/// What an operator wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Limit { pid: u32, job: String, size: Bytes },
    Drain { address: String, begin: bool },
}

/// As the page sends them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitAsked {
    pid: u32,
    job: String,
    size: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainAsked {
    address: String,
    begin: bool,
}

#[derive(Debug)]
pub struct Dashboard {
    pub board: Arc<Mutex<Board>>,
    pub guard: Guard,
    /// Nobody may change anything, whatever they show.
    pub read_only: bool,
    /// Bounded: who asks for more than can be done is told so.
    pub wishes: SyncSender<(u64, Wish)>,
    pub next: AtomicU64,
}

fn json(status: u16, value: &impl serde::Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("plain data serialises");
    Response::new(status, "application/json", body)
}

fn fixed(kind: &'static str, text: &'static str) -> Response {
    Response::new(200, kind, text.as_bytes()).with(POLICY)
}

fn error(status: u16, text: impl Into<String>) -> Response {
    json(status, &serde_json::json!({ "error": text.into() }))
}

impl Site for Dashboard {
    fn answer(&self, request: &Request<'_>) -> Response {
        if !self.guard.knows_host(request) {
            return Response::text(
                421,
                "this name is not known here: use an address, or start 'muninn dashboard' with --host NAME\n",
            );
        }
        match (request.method, request.path) {
            (Method::Get | Method::Head, path) => self.show(request, path),
            (Method::Post, path) => self.change(request, path),
            (Method::Other, _) => Response::text(405, "ask with GET or POST\n"),
        }
    }
}

impl Dashboard {
    fn show(&self, request: &Request<'_>, path: &str) -> Response {
        match path {
            "/" => fixed("text/html; charset=utf-8", PAGE),
            "/dashboard.css" => fixed("text/css; charset=utf-8", STYLE),
            "/format.js" => fixed("text/javascript; charset=utf-8", FORMAT),
            "/charts.js" => fixed("text/javascript; charset=utf-8", CHARTS),
            "/dashboard.js" => fixed("text/javascript; charset=utf-8", SCRIPT),
            "/icon.svg" => fixed("image/svg+xml", ICON),
            "/healthz" => Response::text(200, "ok\n"),
            _ if !path.starts_with("/api/") => Response::text(404, "there is nothing here\n"),
            _ => match self.guard.right(request) {
                None => error(401, "a token is needed"),
                Some(right) => self.tell(request, path, right),
            },
        }
    }

    fn tell(&self, request: &Request<'_>, path: &str, right: Right) -> Response {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        match path {
            "/api/state" => {
                let mark = request.asked("since").unwrap_or_default();
                json(
                    200,
                    &board.since(mark, right == Right::Act && !self.read_only),
                )
            }
            "/api/life" => {
                let pid = request.asked("pid").and_then(|pid| pid.parse().ok());
                match pid.and_then(|pid| board.life(pid)) {
                    Some(life) => json(200, life),
                    None => error(404, "this job has ended"),
                }
            }
            _ => error(404, "there is nothing here"),
        }
    }

    fn change(&self, request: &Request<'_>, path: &str) -> Response {
        let kind = request.field("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        match self.guard.right(request) {
            None => return error(401, "a token is needed"),
            Some(Right::See) => return error(403, "this token is for looking only"),
            Some(Right::Act) if self.read_only => {
                return error(403, "the dashboard was started with --read-only");
            }
            Some(Right::Act) if !self.guard.is_own_page(request) => {
                return error(403, "this comes from another site");
            }
            Some(Right::Act) if !kind.eq_ignore_ascii_case("application/json") => {
                return error(400, "send JSON");
            }
            Some(Right::Act) => {}
        }
        let wish = match path {
            "/api/limit" => serde_json::from_slice(request.body)
                .map_err(|error| error.to_string())
                .and_then(|asked: LimitAsked| {
                    let size = asked.size.parse::<Bytes>();
                    Ok(Wish::Limit {
                        pid: asked.pid,
                        job: asked.job,
                        size: size.map_err(|error| error.to_string())?,
                    })
                }),
            "/api/drain" => serde_json::from_slice(request.body)
                .map_err(|error| error.to_string())
                .map(|DrainAsked { address, begin }| Wish::Drain { address, begin }),
            _ => return error(404, "there is nothing here"),
        };
        let wish = match wish {
            Ok(wish) => wish,
            Err(why) => return error(400, why),
        };
        let id = self.next.fetch_add(1, Relaxed);
        match self.wishes.try_send((id, wish)) {
            Ok(()) => json(202, &serde_json::json!({ "id": id })),
            Err(_) => error(429, "too much is being done already; try again"),
        }
    }
}
