//! Which form the client wants, by its header `Accept`. A form that cannot be served is refused before anything is
//! written (api-server.md 2.1).

use apiserver_api::Status;
use apiserver_machinery::{
    Resource,
    negotiate::{self, Answer, AnswerForm},
    table::IncludeObject,
};

use super::form::{Form, TableFormat, View};
use crate::{clock, server::Call};

/// For an answer with one object.
///
/// # Errors
/// 406; 400 for a wrong `includeObject`.
pub(crate) fn one(call: &Call<'_>, resource: &Resource) -> Result<Form, Status> {
    form(call, negotiate::object_answer(call.accept(), resource, false)?)
}

/// For an answer with a list.
///
/// # Errors
/// As for [`one`].
pub(crate) fn list(call: &Call<'_>, resource: &Resource) -> Result<Form, Status> {
    form(call, negotiate::object_answer(call.accept(), resource, true)?)
}

/// For the events of a watch.
///
/// # Errors
/// As for [`one`].
pub(crate) fn watch(call: &Call<'_>, resource: &Resource) -> Result<Form, Status> {
    form(call, negotiate::watch_answer(call.accept(), resource)?)
}

fn form(call: &Call<'_>, answer: Answer) -> Result<Form, Status> {
    let view = match answer.form {
        AnswerForm::Object => View::Plain,
        AnswerForm::Partial(version) => View::Partial(version),
        AnswerForm::Table(version) => {
            let include = IncludeObject::parse(&call.info.query_value("includeObject").unwrap_or_default())?;
            View::Table(TableFormat { version, include, now: clock::unix_now() })
        }
    };
    Ok(Form { view, format: answer.format })
}

impl Call<'_> {
    /// A header's text; of a repeated one the first.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What the client accepts.
    pub(crate) fn accept(&self) -> Option<&str> {
        self.header("accept")
    }
}
