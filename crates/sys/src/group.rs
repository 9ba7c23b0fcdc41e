//! Users and groups, as `/etc/passwd` and `/etc/group` have them.
//!
//! Known limit: those that only a directory server knows are not found.

use std::path::Path;

/// A group of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: u32,
    /// Those that are named; users whose first group it is are not.
    pub members: Vec<String>,
}

/// The group of this name.
pub fn find(name: &str) -> Option<Group> {
    group_in(&read("/etc/group"), name)
}

/// The name of a group.
pub fn name_of(id: u32) -> Option<String> {
    name_in(&read("/etc/group"), id)
}

/// The number of a user.
pub fn user(name: &str) -> Option<u32> {
    let text = read("/etc/passwd");
    let fields = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields.len() > 2 && fields[0] == name);
    found.next()?[2].parse().ok()
}

/// The name of the user that this process is.
pub fn own_name() -> Option<String> {
    name_in(&read("/etc/passwd"), rustix::process::geteuid().as_raw())
}

/// Whether this process is in the group.
pub fn is_own(id: u32) -> bool {
    let further = rustix::process::getgroups().unwrap_or_default();
    let first = rustix::process::getegid();
    further
        .into_iter()
        .chain([first])
        .any(|gid| gid.as_raw() == id)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(path)).unwrap_or_default()
}

fn group_in(text: &str, name: &str) -> Option<Group> {
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<&str> = line.split(':').collect();
    let members = fields.get(3).unwrap_or(&"").split(',');
    Some(Group {
        id: fields.get(2)?.parse().ok()?,
        members: members
            .filter(|name| !name.is_empty())
            .map(String::from)
            .collect(),
    })
}

fn name_in(text: &str, id: u32) -> Option<String> {
    let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = lines.find(|fields| fields.len() > 2 && fields[2].parse() == Ok(id))?;
    Some(found[0].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read() {
        let text = "root:x:0:\nmuninn:x:990:alice,bob\nbroken\nodd:x:none:\n";
        let group = group_in(text, "muninn").unwrap();
        assert_eq!(
            (group.id, group.members.join(" ")),
            (990, "alice bob".to_string())
        );
        assert_eq!(group_in(text, "root").unwrap().members, [] as [String; 0]);
        assert_eq!(group_in(text, "muni"), None);
        assert_eq!(group_in(text, "broken").or(group_in(text, "odd")), None);
        assert_eq!(name_in(text, 990).as_deref(), Some("muninn"));
        assert_eq!(name_in(text, 991), None);
    }

    #[test]
    fn this_process_is_somebody() {
        assert_eq!(user("root"), Some(0));
        assert!(is_own(rustix::process::getegid().as_raw()));
        assert!(!is_own(u32::MAX - 7));
    }
}
