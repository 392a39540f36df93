# Moves what nvcc --keep left as FOLDER/nvcc/NAME.compute_ARCHITECTURE.ptx to FOLDER/ARCHITECTURE/NAME.ptx, and removes
# the rest of it, which is large.
file(GLOB files ${FOLDER}/nvcc/*.ptx)
foreach(file ${files})
  if(NOT file MATCHES "([A-Za-z0-9_]+)\\.compute_([0-9]+)\\.ptx$")
    message(FATAL_ERROR "${file}: wanted NAME.compute_ARCHITECTURE.ptx")
  endif()
  file(MAKE_DIRECTORY ${FOLDER}/${CMAKE_MATCH_2})
  file(RENAME ${file} ${FOLDER}/${CMAKE_MATCH_2}/${CMAKE_MATCH_1}.ptx)
endforeach()
file(REMOVE_RECURSE ${FOLDER}/nvcc)
file(MAKE_DIRECTORY ${FOLDER}/nvcc)
