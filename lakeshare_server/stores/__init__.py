"""Where tables' files are: one small interface for reading local disks and object stores."""
