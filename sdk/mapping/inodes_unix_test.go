//go:build unix

package mapping

// inodes says that the platform's files have inode numbers.
const inodes = true
