//! Reads EC2's XML: lists are elements with an `item` for each member.

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

pub(super) fn parsed(text: &str) -> Result<Document<'_>> {
    Document::parse(text).context("reading EC2's XML")
}

/// The child element with this name.
pub(super) fn within<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|below| below.has_tag_name(name))
}

/// The text of the child element with this name; empty if there is none.
pub(super) fn child(node: Node, name: &str) -> String {
    within(node, name).and_then(|found| found.text()).unwrap_or_default().to_owned()
}

/// The result of `read` for each member of every list with this name.
pub(super) fn items<T>(document: &Document, list: &str, read: impl Fn(Node) -> T) -> Vec<T> {
    let lists = document.descendants().filter(|node| node.has_tag_name(list));
    lists.flat_map(|list| list.children().filter(|node| node.has_tag_name("item"))).map(read).collect()
}

/// The text without the members whose value `keep` rejects, in every list with this name.
pub(super) fn retain(text: &str, list: &str, key: &str, keep: impl Fn(&str) -> bool) -> Result<String> {
    let ranges = items(&parsed(text)?, list, |item| (child(item, key), item.range()));
    let (mut out, mut from) = (String::new(), 0);
    for (_, range) in ranges.into_iter().filter(|(value, _)| !keep(value)) {
        out.push_str(text.get(from..range.start).unwrap_or_default());
        from = range.end;
    }
    out.push_str(text.get(from..).unwrap_or_default());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_members_are_read_and_removed() {
        let text = "<r xmlns='x'><set><item><id>a</id></item><item><id>b</id></item></set><set><item><id>c</id></item></set></r>";
        assert_eq!(items(&parsed(text).unwrap(), "set", |i| child(i, "id")), ["a", "b", "c"]);
        let rest = retain(text, "set", "id", |id| id == "b").unwrap();
        assert_eq!(rest, "<r xmlns='x'><set><item><id>b</id></item></set><set></set></r>");
    }
}
