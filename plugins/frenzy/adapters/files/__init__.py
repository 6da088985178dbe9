"""Jobs and run directories on any file system that fsspec reaches."""
