// Owns the precompiled headers that the targets outside of the library share.
