//! `muninn dashboard`: as a browser sees it, as its keyboard uses it, and as those meet it who mean it ill.

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

mod board;
mod browser;
mod chromium;
mod hostile;
