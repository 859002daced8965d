//! The kubeconfig that `fairgate dev` writes for its administrator.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::pki::DevPki;

/// A kubeconfig whose only context is the logical cluster `root` behind `gateway`
/// (for example `https://127.0.0.1:6443`), with everything embedded.
pub(crate) fn render(gateway: &str, pki: &DevPki) -> String {
    let (ca, certificate, key) = (
        STANDARD.encode(&pki.ca_certificate),
        STANDARD.encode(&pki.admin.certificate),
        STANDARD.encode(&pki.admin.key),
    );
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: fairgate\n  cluster:\n    server: {gateway}/clusters/root\n    certificate-authority-data: {ca}\n\
         users:\n\
         - name: admin\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n\
         contexts:\n\
         - name: root\n  context:\n    cluster: fairgate\n    user: admin\n\
         current-context: root\n"
    )
}
