//! The interposing library that holds a program to its slice.
