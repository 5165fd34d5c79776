//! Snapshots of output, without what differs from run to run.

/// Compares with a snapshot, in which owners, times and addresses are replaced.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for (pattern, instead) in [
        (
            r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
            "<owner>",
        ),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", "<time>"),
        (r"ch_[0-9a-f]{32}", "<charge>"),
        (r"node-[0-9a-f]{8}", "<node>"),
        (r"127\.0\.0\.1:\d{5}", "<address>"),
        (r"\b\d{15}\b", "<fence>"),
        // On a busy machine some seconds have passed.
        (r"(in|expires in) (1h|59m( \d+s)?)( |$)", "in <1h>$4"),
        (r"(in|expires in) (10m|9m( \d+s)?)( |$)", "in <10m>$4"),
        (r"(in|expires in) \d+s\b", "in <span>"),
        (r"\d+(s|ms) ago", "<span> ago"),
        // The widths of columns depend on what was replaced.
        (
            r" {2,}(ACQUIRED|EXPIRES|FENCE|CALLER|SINCE|UNTIL|WAITERS)",
            "  $1",
        ),
        (r"\) {2,}", ")  "),
    ] {
        settings.add_filter(pattern, instead);
    }
    settings.bind(|| insta::assert_snapshot!(name, text));
}
