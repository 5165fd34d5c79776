//! A store folder has one server at a time. Another one can use it as soon as the first has ended, even if it was killed.

use std::time::Duration;

use tokio::time::timeout;

use crate::crash::server::StoreFolder;
use forrst_testkit::Lock;

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_second_server_names_the_first() {
    let folder = StoreFolder::new("full");
    let first = folder.start().await;
    let lock = Lock::global("k");
    let request = lock.acquire("a", Duration::from_secs(3600));
    let mut connection = first.connect().await;
    let answer = connection.call(&request).await.unwrap();
    let held = answer.granted().unwrap();

    let mut second = folder.command();
    let second = second.output();
    let second = timeout(Duration::from_secs(30), second).await;
    let second = second.expect("it ends by itself").unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("pid {})", first.pid())), "{said}");
    assert!(
        said.contains(&folder.store().display().to_string()),
        "{said}"
    );

    // The first server is not affected.
    let status = connection.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder().as_ref(), Some(&held));

    first.kill().await;
    let third = folder.start().await;
    let status = third.connect().await.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder(), Some(held));
}
