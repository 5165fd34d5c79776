//! The dashboard at `/`: which locks are held, who holds them and who waits, and a button to release one by force.
//!
//! It consists of four files without a build step, and has no rights of its own: it makes the same calls as any client.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

use crate::Server;

/// Nothing from other origins, nothing inline, no frames; and text can never become a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

impl Server {
    /// The dashboard, which [`serve`](Self::serve) has at `/`.
    ///
    /// It is not part of [`router`](Self::router), because an application has its own `/`. It must be mounted beside `/rpc`.
    pub fn dashboard() -> Router {
        Router::new()
            .route("/", file(HTML, "text/html; charset=utf-8"))
            .route("/page.css", file(CSS, "text/css; charset=utf-8"))
            .route("/page.js", file(JS, "text/javascript; charset=utf-8"))
            .route("/page.svg", file(SVG, "image/svg+xml"))
    }
}

const HTML: &str = include_str!("dashboard/page.html");
const CSS: &str = include_str!("dashboard/page.css");
const JS: &str = include_str!("dashboard/page.js");
const SVG: &str = include_str!("dashboard/page.svg");

fn file(text: &'static str, content_type: &'static str) -> MethodRouter {
    get(async move || -> Response {
        let headers = [
            (CONTENT_TYPE, content_type),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            // A server of a new version has a new dashboard.
            (CACHE_CONTROL, "no-cache"),
        ];
        (headers, text).into_response()
    })
}
